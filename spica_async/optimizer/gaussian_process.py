"""The Gaussian process of Vizier's bandit, in a form that JAX traces quickly.

Imported in the optimizer process only.

It has Vizier's hyper-parameters with their bounds and priors, its kernel (Matern 5/2 with a length
scale for each parameter), and its view of several objectives: independent processes that share one
kernel. Only the way to the numbers differs. Vizier puts its process together from general parts
of TensorFlow Probability, which take longer to trace than to compile and run. For two objectives
it factorizes one matrix of twice the size, and takes padded rows for observations, which makes its
loss NaN and ends its fit where it began. Here one factor serves all objectives, and padded rows
are left out.
"""

from __future__ import annotations

import functools
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from vizier._src.jax import stochastic_process_model as sp
from vizier._src.jax import types
from vizier._src.jax.models.tuned_gp_models import VizierGaussianProcess

_FIRST_SHIFT = 1e-4
_MOST_SHIFTS = 5


@dataclass(frozen=True)
class MaskedProcess:
    """The process as a coroutine over its hyper-parameters: the bandit's `gp_model_class`.

    Equal ones share their compiled programs.

    Attributes:
        continuous: number of continuous features.
        categorical: number of categorical features.
        objectives: number of objectives.
    """

    continuous: int
    categorical: int
    objectives: int

    @classmethod
    def build_model(cls, data: types.ModelData) -> sp.StochasticProcessModel:
        """Returns the model for data of these shapes."""
        coroutine = cls(
            continuous=data.features.continuous.shape[-1],
            categorical=data.features.categorical.shape[-1],
            objectives=data.labels.shape[-1],
        )
        return sp.StochasticProcessModel(coroutine)

    def __call__(
        self, inputs: types.ModelInput | None = None
    ) -> Generator[sp.ModelParameter, jax.Array, Prior]:
        """Yields each hyper-parameter, takes its value, and returns the process at `inputs`.

        Without inputs only the hyper-parameters are of interest.
        """
        values: dict[str, jax.Array] = {}
        for parameter in _hyper_parameters(self.continuous, self.categorical):
            values[parameter.name] = yield parameter
        # A fitted model stacks its sets of hyper-parameters along a first axis; there is one set.
        return Prior(
            points=inputs,
            signal=jnp.reshape(values["signal_variance"], ()),
            noise=jnp.reshape(values["observation_noise_variance"], ()),
            continuous_scales=jnp.reshape(values["continuous_length_scale_squared"], (-1,)),
            categorical_scales=jnp.reshape(values["categorical_length_scale_squared"], (-1,)),
            objectives=self.objectives,
        )


@functools.cache
def _hyper_parameters(continuous: int, categorical: int) -> tuple[sp.ModelParameter, ...]:
    """Returns Vizier's own hyper-parameters in its order, as its coroutine yields them."""
    dimensions = types.ContinuousAndCategorical(continuous, categorical)
    coroutine = VizierGaussianProcess(dimensions, 1)()
    stand_ins = {
        "continuous_length_scale_squared": np.ones(continuous),
        "categorical_length_scale_squared": np.ones(categorical),
    }
    found: list[sp.ModelParameter] = []
    value: Any = None
    while True:
        try:
            parameter = coroutine.send(value)
        except StopIteration:
            return tuple(found)
        found.append(parameter)
        value = stand_ins.get(parameter.name, np.float64(1.0))


@dataclass(frozen=True)
class Prior:
    """The process at the points of observations, with what the bandit uses of a distribution.

    Attributes:
        points: features of the n points, padded rows included.
        signal: variance of the process.
        noise: variance of an observation around it.
        continuous_scales: squared length scales of the continuous features.
        categorical_scales: squared length scales of the categorical features.
        objectives: number of objectives.
    """

    points: types.ModelInput
    signal: jax.Array
    noise: jax.Array
    continuous_scales: jax.Array
    categorical_scales: jax.Array
    objectives: int

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of the observations: (n,), or (n, objectives)."""
        rows: int = self.points.continuous.shape[0]
        return (rows,) if self.objectives == 1 else (rows, self.objectives)

    def copy(self, **_: object) -> Prior:
        """Returns this process: Vizier gives what it initializes a mean, but does not use it."""
        return self

    def log_prob(self, observations: jax.Array, is_missing: jax.Array) -> jax.Array:
        """Returns the log-probability of the observations, summed over the objectives.

        Args:
            observations: Values of shape `event_shape`; rows that are missing may hold anything.
            is_missing: Which rows to leave out, shape (n,).
        """
        factor = self._factor(is_missing)
        whitened = solve_triangular(factor, self._columns(observations, is_missing), lower=True)
        # A row that is missing is a variable of its own with value 0 and variance 1.
        log_normalizer = jnp.sum(jnp.log(jnp.diagonal(factor))) + 0.5 * jnp.log(
            2 * jnp.pi
        ) * jnp.sum(~is_missing)
        return -0.5 * jnp.sum(whitened**2) - self.objectives * log_normalizer

    def posterior_predictive(
        self,
        predictive_index_points: Any,
        observations: jax.Array,
        observations_is_missing: jax.Array,
        _precomputed_divisor_matrix_cholesky: jax.Array | None = None,
        _precomputed_solve_on_observation: jax.Array | None = None,
    ) -> Posterior:
        """Returns the process at other points, given observations at those of this one.

        Args:
            predictive_index_points: Features of the other points; None to have the factor and
                the solution alone computed.
            observations: Values of shape `event_shape`.
            observations_is_missing: Which of them to leave out, of the same shape.
            _precomputed_divisor_matrix_cholesky: What an earlier call computed.
            _precomputed_solve_on_observation: Likewise.
        """
        is_missing = observations_is_missing.reshape(len(observations), -1)[:, 0]
        factor, solution = _precomputed_divisor_matrix_cholesky, _precomputed_solve_on_observation
        if factor is None or solution is None:
            factor = self._factor(is_missing)
            # Flat, because the bandit takes a second dimension for an ensemble.
            solution = cho_solve((factor, True), self._columns(observations, is_missing)).ravel()
        return Posterior(self, predictive_index_points, is_missing, factor, solution)

    def covariance(
        self, continuous: jax.Array, categorical: jax.Array, others: tuple[jax.Array, jax.Array]
    ) -> jax.Array:
        """Returns the covariances of m points with n others, shape (m, n)."""
        differences = jnp.square(continuous[:, None, :] - others[0][None, :, :])
        differ = categorical[:, None, :] != others[1][None, :, :]
        squared_distances = jnp.sum(differences / self.continuous_scales, axis=-1) + jnp.sum(
            differ / self.categorical_scales, axis=-1
        )
        return self.signal * _matern(squared_distances)

    def _factor(self, is_missing: jax.Array) -> jax.Array:
        """Returns the Cholesky factor of the observations' covariance, shape (n, n)."""
        # Padded features are NaN, which spoils the gradient even where a mask hides it.
        continuous = jnp.where(is_missing[:, None], 0.0, self.points.continuous.padded_array)
        categorical = self.points.categorical.padded_array
        covariance = self.covariance(continuous, categorical, (continuous, categorical))
        apart = is_missing[:, None] | is_missing[None, :]
        diagonal = jnp.where(is_missing, 1.0, self.noise)
        return _cholesky(jnp.where(apart, 0.0, covariance) + jnp.diag(diagonal))

    def _columns(self, observations: jax.Array, is_missing: jax.Array) -> jax.Array:
        """Returns the observations with 0 for missing ones, shape (n, objectives)."""
        columns = observations.reshape(len(observations), self.objectives)
        return jnp.where(is_missing[:, None], 0.0, columns)


@dataclass(frozen=True)
class Posterior:
    """What is to be observed at m points, with what the bandit uses of a distribution."""

    prior: Prior
    points: Any
    is_missing: jax.Array
    _precomputed_divisor_matrix_cholesky: jax.Array
    _precomputed_solve_on_observation: jax.Array

    def mean(self) -> jax.Array:
        """Returns the means, shape (m,) or (m, objectives)."""
        solution = self._precomputed_solve_on_observation.reshape(-1, self.prior.objectives)
        means = self._covariance() @ solution
        return means[:, 0] if self.prior.objectives == 1 else means

    def stddev(self) -> jax.Array:
        """Returns the standard deviations, shape (m,) or (m, objectives)."""
        whitened = solve_triangular(
            self._precomputed_divisor_matrix_cholesky, self._covariance().T, lower=True
        )
        explained = jnp.sum(whitened**2, axis=0)
        deviations = jnp.sqrt(self.prior.signal + self.prior.noise - explained)
        if self.prior.objectives == 1:
            return deviations
        return jnp.tile(deviations[:, None], self.prior.objectives)

    def _covariance(self) -> jax.Array:
        """Returns the covariances of the m points with the n observed ones, shape (m, n)."""
        observed = self.prior.points
        covariance = self.prior.covariance(
            self.points.continuous,
            self.points.categorical,
            (observed.continuous.padded_array, observed.categorical.padded_array),
        )
        return jnp.where(self.is_missing, 0.0, covariance)


@jax.custom_jvp  # type: ignore[untyped-decorator]  # JAX leaves it untyped.
def _matern(squared_distances: jax.Array) -> jax.Array:
    """Returns the Matern 5/2 correlations at squared distances in length scales."""
    scaled = jnp.sqrt(5.0 * squared_distances)
    return (1.0 + scaled + scaled**2 / 3.0) * jnp.exp(-scaled)


@_matern.defjvp  # type: ignore[untyped-decorator]  # As above.
def _matern_jvp(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    # By hand: at distance 0 the derivative of the square root, by itself, is infinite.
    scaled = jnp.sqrt(5.0 * primals[0])
    decay = jnp.exp(-scaled)
    correlations = (1.0 + scaled + scaled**2 / 3.0) * decay
    return correlations, -5.0 / 6.0 * (1.0 + scaled) * decay * tangents[0]


def _cholesky(matrix: jax.Array) -> jax.Array:
    """Returns the Cholesky factor of `matrix`, with more on its diagonal if it has none.

    As in Vizier 1e-4 is added, and ten times as much with each further failure.
    """
    identity = jnp.eye(len(matrix))
    constant = jax.lax.stop_gradient(matrix)

    def fails(state: tuple[int, jax.Array]) -> jax.Array:
        tries, shift = state
        factor = jnp.linalg.cholesky(constant + shift * identity)
        return jnp.isnan(factor[-1, -1]) & (tries < _MOST_SHIFTS)

    def add(state: tuple[int, jax.Array]) -> tuple[int, jax.Array]:
        tries, shift = state
        return tries + 1, jnp.maximum(_FIRST_SHIFT, 10 * shift)

    _, shift = jax.lax.while_loop(fails, add, (0, jnp.zeros(())))
    return jnp.linalg.cholesky(matrix + shift * identity)

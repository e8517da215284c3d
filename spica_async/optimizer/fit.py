"""The fit of the Gaussian process's hyper-parameters.

Imported in the optimizer process only.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from numpy.typing import NDArray
from scipy.optimize import minimize
from vizier._src.jax import stochastic_process_model as sp
from vizier._src.jax import types

_Vector = NDArray[np.float64]


class LbfgsFit:
    """SciPy's L-BFGS-B over one flat vector of logarithms: an `ard_optimizer` for Vizier's bandit.

    Variances and length scales span orders of magnitude: over their logarithms a fit converges in
    a quarter of the evaluations, so that five starts cost little more than one would.

    Vizier's own wrapper of the same algorithm takes the hyper-parameters apart and puts them
    together with JAX around every evaluation, which costs more than the evaluation, and compiles
    the loss anew for each fit.

    Args:
        iterations: Most iterations from each start.
        line_search_steps: Most evaluations in one iteration.
        tolerance: Largest component of the projected gradient at which a fit has converged.
    """

    def __init__(
        self, *, iterations: int = 100, line_search_steps: int = 20, tolerance: float = 1e-5
    ) -> None:
        self._options = {"maxiter": iterations, "maxls": line_search_steps, "gtol": tolerance}

    def __call__(
        self,
        init_params: types.ParameterDict,
        loss_fn: Any,
        rng: jax.Array,  # noqa: ARG002 - The interface is Vizier's.
        *,
        constraints: sp.Constraint | None = None,
        best_n: int | None = None,
    ) -> tuple[types.ParameterDict, dict[str, Any]]:
        """Returns the `best_n` sets of hyper-parameters, and the losses from all starts.

        Args:
            init_params: Where to start, stacked along the first axis; above 0, as all of Vizier's.
            loss_fn: Loss and its parts by hyper-parameters: a bound method of a module of arrays.
            rng: Unused: the algorithm draws nothing.
            constraints: Bounds of the hyper-parameters, above 0.
            best_n: How many sets to return; 1 if None.

        Raises:
            FloatingPointError: If no start led to a finite loss: there is no fit then.
        """
        leaves, structure = jax.tree.flatten(loss_fn)
        layout = _Layout({name: np.shape(value)[1:] for name, value in init_params.items()})
        starts = {name: np.asarray(value) for name, value in init_params.items()}

        def loss_and_gradient(logarithms: _Vector) -> tuple[float, _Vector]:
            vector = np.exp(logarithms)
            loss, gradient = _loss_and_gradient(structure, leaves, layout.split(vector))
            return float(loss), layout.join(gradient) * vector

        bounds = None
        if constraints is not None:
            sides = (np.log(layout.join(side)) for side in constraints.bounds)
            bounds = list(zip(*sides, strict=True))
        count = len(next(iter(starts.values())))
        ends = [
            minimize(
                loss_and_gradient,
                np.log(layout.join({name: value[i] for name, value in starts.items()})),
                jac=True,
                method="L-BFGS-B",
                bounds=bounds,
                options=self._options,
            )
            for i in range(count)
        ]
        losses = np.array([end.fun for end in ends])
        if not np.isfinite(losses).any():
            raise FloatingPointError("the fit of the Gaussian process found no finite loss")
        best = [layout.split(np.exp(ends[i].x)) for i in np.argsort(losses)[: best_n or 1]]
        params = {name: jnp.asarray(np.stack([end[name] for end in best])) for name in best[0]}
        return params, {"loss": jnp.asarray(losses[np.newaxis])}


class _Layout:
    """Where each hyper-parameter stands in a flat vector.

    Args:
        shapes: Their shapes by name.
    """

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        self._shapes = dict(sorted(shapes.items()))

    def join(self, values: dict[str, Any]) -> _Vector:
        """Returns the values, each of its shape or a scalar for all of it, in one vector."""
        parts = [
            np.broadcast_to(np.asarray(values[name], dtype=float), shape).ravel()
            for name, shape in self._shapes.items()
        ]
        return np.concatenate(parts)

    def split(self, vector: _Vector) -> dict[str, _Vector]:
        """Returns the values by name."""
        values: dict[str, _Vector] = {}
        at = 0
        for name, shape in self._shapes.items():
            size = int(np.prod(shape))
            values[name] = vector[at : at + size].reshape(shape)
            at += size
        return values


@functools.partial(jax.jit, static_argnums=0)
def _loss_and_gradient(structure: Any, leaves: list[Any], params: dict[str, Any]) -> Any:
    """Returns the loss of `params` and its gradient.

    The loss function comes in two parts: its structure, which with the shapes of its arrays is
    what a compiled program is looked up by, and these arrays.
    """
    loss_fn = jax.tree.unflatten(structure, leaves)
    (loss, _), gradient = jax.value_and_grad(loss_fn, has_aux=True)(params)
    return loss, gradient

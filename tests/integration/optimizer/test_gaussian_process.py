"""Our form of the Gaussian process beside Vizier's own, and the fits of every profile."""

from __future__ import annotations

from typing import Any

import pytest
from support.sampling_histories import SPACES, request_of, study_of

from spica_async.optimizer.quasi_random import draw
from spica_async.optimizer.types import Suggestion

pytestmark = pytest.mark.filterwarnings("ignore")  # Vizier's libraries warn when imported.

TRIALS = 12


def bandit_and_data(space: str, objectives: int) -> tuple[Any, Any]:
    """A fast bandit that was told trials, and its padded data with warped labels."""
    import jax
    from vizier import algorithms as vza
    from vizier._src.algorithms.designers.gp_ucb_pe import UCBPEConfig

    from spica_async.optimizer.designer import FastDesigner
    from spica_async.optimizer.fit import LbfgsFit
    from spica_async.optimizer.padding import Tier
    from spica_async.optimizer.vizier_study import to_completed

    study = study_of(space, objectives)
    bandit = FastDesigner(study)._bandit(
        Tier.for_trials(TRIALS), LbfgsFit(), UCBPEConfig(), jax.random.PRNGKey(0)
    )
    told = request_of(study, TRIALS, 0, 1).history
    bandit.update(
        vza.CompletedTrials([to_completed(trial, TRIALS) for trial in told]), vza.ActiveTrials()
    )
    return bandit, bandit._trials_to_data(bandit._all_completed_trials)


def parameters_of(data: Any, *, length_scale: float) -> dict[str, Any]:
    from jax import numpy as jnp

    def scales(features: Any) -> Any:
        return length_scale * (1.0 + jnp.arange(features.shape[-1]))

    return {
        "signal_variance": jnp.array(0.3),
        "observation_noise_variance": jnp.array(0.01),
        "continuous_length_scale_squared": scales(data.features.continuous),
        "categorical_length_scale_squared": scales(data.features.categorical),
    }


def without_padding(data: Any) -> Any:
    from vizier._src.jax import types

    def bare(array: Any) -> Any:
        return types.PaddedArray.as_padded(array.padded_array[:TRIALS])

    return types.ModelData(
        types.ModelInput(bare(data.features.continuous), bare(data.features.categorical)),
        bare(data.labels),
    )


@pytest.mark.parametrize("objectives", [1, 2])
def test_padded_it_has_the_loss_of_viziers_own_without_padding(objectives: int) -> None:
    import jax
    from jax import numpy as jnp
    from vizier._src.jax import stochastic_process_model as sp
    from vizier._src.jax.models.tuned_gp_models import VizierGaussianProcess

    from spica_async.optimizer.gaussian_process import MaskedProcess

    _, padded = bandit_and_data("mixed", objectives)
    assert padded.labels.shape == (64, objectives)
    bare = without_padding(padded)
    stock = sp.CoroutineWithData(VizierGaussianProcess.build_model(bare).coroutine, bare)
    ours = sp.CoroutineWithData(MaskedProcess.build_model(padded).coroutine, padded)
    for length_scale in (0.05, 2.0):
        params = parameters_of(padded, length_scale=length_scale)
        (expected, parts), slope = jax.value_and_grad(stock.loss_with_aux, has_aux=True)(params)
        (loss, own_parts), own_slope = jax.value_and_grad(ours.loss_with_aux, has_aux=True)(params)
        assert abs(float(loss) - float(expected)) <= 1e-10
        assert own_parts["losses"].keys() == parts["losses"].keys()
        for name, value in slope.items():
            assert jnp.allclose(own_slope[name], value, atol=1e-9), name


@pytest.mark.slow
@pytest.mark.parametrize("objectives", [1, 2])
def test_padded_it_predicts_what_viziers_own_predicts_without_padding(objectives: int) -> None:
    import equinox as eqx
    import jax
    from jax import numpy as jnp
    from vizier._src.jax import stochastic_process_model as sp
    from vizier._src.jax.models.tuned_gp_models import VizierGaussianProcess

    from spica_async.optimizer.gaussian_process import MaskedProcess
    from spica_async.optimizer.vizier_study import to_active

    bandit, padded = bandit_and_data("mixed", objectives)
    study = study_of("mixed", objectives)
    elsewhere = [to_active(Suggestion(n, draw(study, 100 + n))) for n in range(9)]
    features = bandit._converter.to_features(elsewhere)
    # One set of hyper-parameters is stacked along a first axis, as a fit returns it.
    params = jax.tree.map(lambda v: v[None], parameters_of(padded, length_scale=0.5))
    predicted = []
    for process, data in (
        (VizierGaussianProcess, without_padding(padded)),
        (MaskedProcess, padded),
    ):
        model = sp.StochasticProcessWithCoroutine(process.build_model(data).coroutine, params)
        predictive = sp.UniformEnsemblePredictive(eqx.filter_jit(model.precompute_predictive)(data))
        distribution = predictive.predict(features)
        predicted.append((distribution.mean()[:9], distribution.stddev()[:9]))
    for expected, own in zip(*predicted, strict=True):
        assert own.shape == expected.shape
        assert jnp.allclose(own, expected, atol=1e-12)
        assert not jnp.allclose(own, own[0])


def test_a_matrix_without_a_factor_gets_a_heavier_diagonal() -> None:
    import jax
    from jax import numpy as jnp

    from spica_async.optimizer.gaussian_process import _cholesky

    sound = jnp.array([[2.0, 1.0], [1.0, 2.0]])
    assert jnp.allclose(_cholesky(sound), jnp.linalg.cholesky(sound), atol=1e-15)
    for flaw, shift in ((0.0, 1e-4), (5e-4, 1e-3)):
        matrix = jnp.array([[1.0, 1.0 + flaw], [1.0 + flaw, 1.0]]) - 1e-12 * jnp.eye(2)
        assert not jnp.isfinite(jnp.linalg.cholesky(matrix)).all()
        factor = _cholesky(matrix)
        assert jnp.allclose(factor @ factor.T, matrix + shift * jnp.eye(2), atol=1e-12)
        slope = jax.grad(lambda m: jnp.log(jnp.diagonal(_cholesky(m))).sum())(matrix)
        assert jnp.isfinite(slope).all()
    assert jnp.isnan(_cholesky(jnp.full((2, 2), jnp.nan))).any()  # It ends.


def test_a_fit_without_a_finite_loss_is_an_error() -> None:
    import jax
    import numpy as np

    from spica_async.optimizer.fit import LbfgsFit

    def hopeless(params: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return np.nan * params["x"], {}

    start = {"x": np.array([1.0, 2.0])}
    with pytest.raises(FloatingPointError, match="no finite loss"):
        LbfgsFit()(start, jax.tree_util.Partial(hopeless), None)


def test_a_fit_finds_the_best_end_within_bounds() -> None:
    import jax
    import numpy as np
    from jax import numpy as jnp
    from vizier._src.jax import stochastic_process_model as sp

    from spica_async.optimizer.fit import LbfgsFit

    def two_valleys(params: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        deep = jnp.minimum((params["x"] - 5) ** 2, 1 + (params["x"] - 1) ** 2)
        return deep + jnp.sum((params["v"] - jnp.array([0.5, 9.0])) ** 2), {}

    starts = {"x": np.array([1.5, 4.0]), "v": np.ones((2, 2))}
    bounds = ({"x": 0.01, "v": np.full(2, 0.01)}, {"x": 9.0, "v": np.full(2, 2.0)})
    best, metrics = LbfgsFit()(
        starts,
        jax.tree_util.Partial(two_valleys),
        None,
        constraints=sp.Constraint(bounds),
        best_n=1,
    )
    assert metrics["loss"].shape == (1, 2)
    assert np.allclose(best["x"], [5.0], atol=1e-3)
    assert np.allclose(best["v"], [[0.5, 2.0]], atol=1e-3)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("profile", ["FastDesigner", "VizierDefaultDesigner"])
@pytest.mark.parametrize("objectives", [1, 2])
@pytest.mark.parametrize("space", SPACES)
def test_the_fit_of_a_profile_moves_every_hyper_parameter(
    space: str, objectives: int, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jax import numpy as jnp
    from vizier._src.algorithms.designers.gp_ucb_pe import VizierGPUCBPEBandit

    from spica_async.optimizer import designer as module

    # Only the fit is of interest: it is caught in the bandit that the profile has built.
    caught: list[Any] = []

    class Caught(Exception):  # noqa: N818 - It is no error.
        pass

    def catch(bandit: Any, count: int) -> None:
        caught.append(bandit)
        raise Caught

    study = study_of(space, objectives)
    designer = getattr(module, profile)(study)
    monkeypatch.setattr(VizierGPUCBPEBandit, "suggest", catch)
    with pytest.raises(Caught):
        designer.suggest(request_of(study, TRIALS, 0, 1))
    (bandit,) = caught
    starts: list[Any] = []
    optimizer = bandit._ard_optimizer

    def recording(init_params: Any, **others: Any) -> Any:
        starts.append(init_params)
        return optimizer(init_params=init_params, **others)

    import jax

    bandit._ard_optimizer = recording
    data = bandit._trials_to_data(bandit._all_completed_trials)
    model = bandit._build_gp_model_and_optimize_parameters(data, jax.random.PRNGKey(1))
    (start,) = starts
    assert len(start["signal_variance"]) == 5
    for name, end in model.params.items():
        assert jnp.isfinite(end).all()
        for i in range(len(start[name])):
            assert not jnp.any(jnp.isclose(start[name][i], end[0], rtol=1e-6)), name

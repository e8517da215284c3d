"""The fit of the Gaussian process on padded trials, by profile of the study."""

from __future__ import annotations

import math
from typing import Any

import pytest

from spica_async.sampling.quasi_random import draw
from spica_async.sampling.types import Objective, Study, Trial
from spica_async.space.parameters import (
    CategoricalParameter,
    DiscreteParameter,
    FloatParameter,
    Parameter,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # Vizier's libraries warn when imported.

NUMERIC: tuple[Parameter, ...] = (
    FloatParameter("f", 0.0, 2.0),
    DiscreteParameter("n", (1, 2, 4, 8, 16), log=True),
)
CATEGORICAL: tuple[Parameter, ...] = (
    CategoricalParameter("c", ("a", "b", "c", "d")),
    CategoricalParameter("d", ("x", "y", "z")),
)
SPACES = {"numeric": NUMERIC, "categorical": CATEGORICAL, "mixed": NUMERIC + CATEGORICAL}
TRIALS = 12


def bandit_and_data(space: str, objectives: int) -> tuple[Any, Any]:
    """A bandit that was told trials, and its padded data with warped labels."""
    from vizier import algorithms as vza

    from spica_async.sampling.designer import GaussianProcessDesigner
    from spica_async.sampling.vizier_study import to_completed

    names = [f"y{i}" for i in range(objectives)]
    study = Study("agg", 5, SPACES[space], tuple(Objective(name, maximize=True) for name in names))
    trials = []
    for number in range(TRIALS):
        assignment = draw(study, number)
        # Smooth in the numbers and different by label, each objective in its own way.
        level = sum(
            len(name) + ord(value) % 5 if isinstance(value, str) else math.log(1 + value)
            for name, value in assignment.items()
        )
        trials.append(
            Trial(number, assignment, {n: math.sin(level + i) for i, n in enumerate(names)})
        )
    bandit = GaussianProcessDesigner(study)._bandit(trials=TRIALS, seed=0)
    bandit.update(
        vza.CompletedTrials([to_completed(trial) for trial in trials]), vza.ActiveTrials()
    )
    return bandit, bandit._trials_to_data(bandit._all_completed_trials)


def parameters_of(data: Any, *, length_scale: float) -> dict[str, Any]:
    from jax import numpy as jnp

    def scales(features: Any) -> Any:
        return length_scale * (1 + jnp.arange(features.shape[-1]))

    return {
        "signal_variance": jnp.array(0.3),
        "observation_noise_variance": jnp.array(0.01),
        "continuous_length_scale_squared": scales(data.features.continuous),
        "categorical_length_scale_squared": scales(data.features.categorical),
    }


@pytest.mark.parametrize("objectives", [1, 2, 3])
def test_the_masked_loss_equals_the_loss_without_padding(objectives: int) -> None:
    from vizier._src.jax import stochastic_process_model as sp
    from vizier._src.jax import types
    from vizier._src.jax.models.tuned_gp_models import VizierGaussianProcess

    from spica_async.sampling.masked_fit import masked_loss

    _, padded = bandit_and_data("mixed", objectives)
    assert padded.labels.shape == (32, objectives)
    bare = types.ModelData(
        types.ModelInput(
            types.PaddedArray.as_padded(padded.features.continuous.unpad()),
            types.PaddedArray.as_padded(padded.features.categorical.unpad()),
        ),
        types.PaddedArray.as_padded(padded.labels.unpad()),
    )
    assert bare.labels.shape == (TRIALS, objectives)
    stock = sp.CoroutineWithData(VizierGaussianProcess.build_model(bare).coroutine, bare)
    for length_scale in (0.05, 2.0):
        params = parameters_of(padded, length_scale=length_scale)
        expected, expected_aux = stock.loss_with_aux(params)
        loss, aux = masked_loss(padded, params)
        assert abs(float(loss) - float(expected)) <= 1e-10
        assert aux.keys() == expected_aux.keys()


@pytest.mark.slow
@pytest.mark.parametrize("objectives", [1, 2])
@pytest.mark.parametrize("space", SPACES)
def test_the_fit_moves_every_hyper_parameter(space: str, objectives: int) -> None:
    import jax
    from jax import numpy as jnp

    from spica_async.sampling.masked_fit import masked_loss

    bandit, data = bandit_and_data(space, objectives)
    starts: list[Any] = []
    inner = bandit._ard_optimizer._optimizer

    def recording(init_params: Any, **others: Any) -> Any:
        starts.append(init_params)
        return inner(init_params=init_params, **others)

    bandit._ard_optimizer._optimizer = recording
    model = bandit._build_gp_model_and_optimize_parameters(data, jax.random.PRNGKey(1))
    (start,) = starts
    # One fixed start and one at random; an ensemble of the one best end.
    assert start["signal_variance"].shape == (2,)
    best = {name: jnp.squeeze(value, axis=0) for name, value in model.params.items()}
    loss, _ = masked_loss(data, best)
    for i in range(2):
        begin = {name: value[i] for name, value in start.items()}
        assert loss < masked_loss(data, begin)[0] - 0.1
        for name, value in begin.items():
            assert not jnp.any(jnp.isclose(value, best[name], rtol=1e-6)), name


def test_a_fit_without_a_finite_loss_is_an_error() -> None:
    from jax import numpy as jnp
    from vizier._src.jax import stochastic_process_model as sp
    from vizier._src.jax.models.tuned_gp_models import VizierGaussianProcess

    from spica_async.sampling.masked_fit import MaskedFit

    _, data = bandit_and_data("mixed", 2)
    model = sp.CoroutineWithData(VizierGaussianProcess.build_model(data).coroutine, data)

    def stuck(init_params: Any, **others: Any) -> Any:
        return init_params, {"loss": jnp.array([[jnp.nan, jnp.nan]])}

    with pytest.raises(FloatingPointError, match="no finite loss"):
        MaskedFit(stuck)({}, model.loss_with_aux, None)

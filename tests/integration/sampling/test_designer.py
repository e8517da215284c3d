"""Vizier's bandit as the sampler builds it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spica_async.sampling.assignments import accept
from spica_async.sampling.process import SamplerProcess
from spica_async.sampling.quasi_random import draw
from spica_async.sampling.types import Objective, Study, Suggestion, Trial
from spica_async.sampling.wire import AskRequest
from spica_async.space.parameters import (
    Assignment,
    CategoricalParameter,
    DiscreteParameter,
    FloatParameter,
    Parameter,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # Vizier's libraries warn when imported.

PARAMETERS: tuple[Parameter, ...] = (
    FloatParameter("ratio", 0.0, 1.0, 1.0),
    DiscreteParameter("batch", (1, 2, 4, 8, 16, 32, 64), log=True, default=8),
    CategoricalParameter("mode", ("tp", "dp", "ep"), "ep"),
    DiscreteParameter("credit", (0.0, 0.5, 1.0)),
)
ONE = (Objective("throughput", maximize=True),)
TWO = (*ONE, Objective("latency", maximize=False))


@pytest.fixture(autouse=True)
def _cache(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps compiled programs beside pytest's own cache, so that only the first run is slow."""
    config: pytest.Config = request.config
    assert config.cache is not None
    monkeypatch.setenv("XDG_CACHE_HOME", str(config.cache.mkdir("optimizer")))


def evaluate(assignment: Assignment) -> dict[str, float]:
    """Two objectives in conflict over the ratio; the rest has one best choice for both."""
    ratio, batch, credit = (float(assignment[name]) for name in ("ratio", "batch", "credit"))
    quality = 10.0 - 0.5 * (math.log2(batch) - 4) ** 2 - 2 * abs(credit - 0.5)
    quality -= {"tp": 3.0, "dp": 0.0, "ep": 1.5}[str(assignment["mode"])]
    return {
        "throughput": quality * (0.4 + ratio) - 6 * (ratio - 0.7) ** 2,
        "latency": 30.0 - 2 * quality + 10 * ratio,
    }


def trial_of(study: Study, suggestion: Suggestion) -> Trial:
    values = evaluate(suggestion.assignment)
    metrics = {objective.name: values[objective.name] for objective in study.objectives}
    return Trial(suggestion.number, suggestion.assignment, metrics)


def history_of(study: Study, count: int) -> tuple[Trial, ...]:
    return tuple(trial_of(study, Suggestion(n, draw(study, n))) for n in range(count))


def check(study: Study, assignments: list[Assignment], count: int) -> None:
    """Each is made of exactly the listed values."""
    assert len(assignments) == count
    for assignment in assignments:
        accepted = accept(study.parameters, assignment)
        assert accepted == assignment
        assert [type(v) for v in accepted.values()] == [type(v) for v in assignment.values()]


async def test_a_round_of_seeds_and_a_suggestion_of_the_model() -> None:
    study = Study("agg", 3, PARAMETERS, ONE)
    async with SamplerProcess(study) as sampler:
        seeds = await sampler.ask(8)
        assert seeds[0].assignment == {"ratio": 1.0, "batch": 8, "mode": "ep", "credit": 0.5}
        check(study, [s.assignment for s in seeds], 8)
        assert len({str(s.assignment) for s in seeds}) == 8
        trials = [trial_of(study, s) for s in seeds[:-1]]
        await sampler.tell([*trials, Trial(7, seeds[7].assignment, None, {"distance": 0.5})])
        (suggestion,) = await sampler.ask(1)
    assert suggestion.stand_in is None
    assert suggestion.number == 8
    check(study, [suggestion.assignment], 1)
    assert sampler.stats.stand_ins == 0


def test_a_tier_has_room_for_the_whole_ask() -> None:
    from spica_async.sampling.designer import Tier

    assert [Tier(n).rows for n in (1, 32, 33, 64, 65, 256, 257)] == [32, 32, 64, 64, 128, 256, 512]


def test_a_padded_array_is_what_the_class_itself_would_make() -> None:
    import jax
    import numpy as np
    from vizier._src.jax import types

    from spica_async.sampling.designer import Tier

    tier = Tier(32)
    for array, padded in (
        (values := np.arange(6.0).reshape(3, 2), tier.pad_labels(values)),
        (values := np.arange(6.0).reshape(3, 2), tier.pad_features(values)),
        (values := np.zeros((0, 2)), tier.pad_features(values)),
        (indices := np.ones((3, 1), dtype=np.int64), tier.pad_features(indices)),
    ):
        fill = -1 if array.dtype == np.int64 else np.nan
        own = types.PaddedArray.from_array(array, (32, array.shape[1]), fill_value=fill)
        assert jax.tree.structure(padded) == jax.tree.structure(own)
        for ours, theirs in zip(jax.tree.leaves(padded), jax.tree.leaves(own), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_seeds_are_one_sequence_however_they_are_asked_for() -> None:
    from spica_async.sampling.designer import GaussianProcessDesigner

    study = Study("agg", 3, PARAMETERS, TWO)
    together = GaussianProcessDesigner(study).suggest(AskRequest(0, 16, (), ()))
    designer = GaussianProcessDesigner(study)
    apart: list[Assignment] = []
    for count in (1, 2, 4, 9):
        pending = tuple(Suggestion(n, assignment) for n, assignment in enumerate(apart))
        apart += designer.suggest(AskRequest(len(apart), count, (), pending))
    assert apart == together
    other = GaussianProcessDesigner(Study("disagg", 3, PARAMETERS, TWO))
    assert other.suggest(AskRequest(0, 16, (), ()))[1:] != together[1:]


async def suggested(study: Study, *, replace_always: bool) -> list[Suggestion]:
    """Rounds with trials told late and out of order, and one that failed."""
    made: list[Suggestion] = []
    async with SamplerProcess(study) as sampler:
        for count, told in ((6, [5, 0, 1, 3]), (4, [2, 9, 7]), (2, [4, 11, 6]), (3, [])):
            if replace_always:
                await sampler._discard()
            made += await sampler.ask(count)
            trials = [trial_of(study, made[number]) for number in told]
            if 7 in told:
                trials[-1] = Trial(7, made[7].assignment, None)
            await sampler.tell(trials)
    assert sampler.stats.stand_ins == 0
    assert sampler.stats.restarts == (4 if replace_always else 0)
    return made


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("objectives", [ONE, TWO], ids=["one", "two"])
async def test_a_replaced_process_suggests_the_same(
    objectives: tuple[Objective, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    study = Study("agg", 11, PARAMETERS, objectives)
    # The first process compiles everything, the later ones load it.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = await suggested(study, replace_always=False)
    assert await suggested(study, replace_always=True) == kept
    assert (tmp_path / "spica-async" / "jax").is_dir()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_answer_depends_on_the_request_alone() -> None:
    from spica_async.sampling.designer import GaussianProcessDesigner

    study = Study("agg", 3, PARAMETERS, TWO)
    history = history_of(study, 12)
    pending = (Suggestion(12, draw(study, 12)), Suggestion(13, draw(study, 13)))
    request = AskRequest(14, 2, history, pending)
    designer = GaussianProcessDesigner(study)
    answer = designer.suggest(request)
    check(study, answer, 2)
    others = [
        AskRequest(14, 2, (*history, trial_of(study, pending[0])), pending[1:]),
        AskRequest(15, 2, history, (*pending, Suggestion(14, draw(study, 14)))),
    ]
    assert all(designer.suggest(other) != answer for other in others)
    assert designer.suggest(request) == answer
    assert GaussianProcessDesigner(Study("agg", 4, PARAMETERS, TWO)).suggest(request) != answer


ODD_HISTORIES: dict[str, Callable[[Study], AskRequest]] = {
    "all failed": lambda study: AskRequest(
        9, 2, tuple(Trial(n, draw(study, n), None) for n in range(9)), ()
    ),
    "all pending": lambda study: AskRequest(
        9, 2, (), tuple(Suggestion(n, draw(study, n)) for n in range(9))
    ),
    "all equal": lambda study: AskRequest(
        9,
        2,
        tuple(
            Trial(n, draw(study, n), {objective.name: 0.0 for objective in study.objectives})
            for n in range(9)
        ),
        (),
    ),
    "one measured": lambda study: AskRequest(
        9,
        2,
        (
            *(Trial(n, draw(study, n), None) for n in range(8)),
            trial_of(study, Suggestion(8, draw(study, 8))),
        ),
        (),
    ),
    "one point": lambda study: AskRequest(
        9, 2, tuple(trial_of(study, Suggestion(n, draw(study, 0))) for n in range(9)), ()
    ),
    "full tier": lambda study: AskRequest(31, 2, history_of(study, 31), ()),
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("objectives", [ONE, TWO], ids=["one", "two"])
def test_odd_histories_are_answered(objectives: tuple[Objective, ...]) -> None:
    from spica_async.sampling.designer import GaussianProcessDesigner

    study = Study("agg", 3, PARAMETERS, objectives)
    designer = GaussianProcessDesigner(study)  # One for all, which saves compilations.
    for request_for in ODD_HISTORIES.values():
        request = request_for(study)
        check(study, designer.suggest(request), request.count)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("objectives", [1, 3])
@pytest.mark.parametrize("parameter", PARAMETERS[:3], ids=lambda parameter: parameter.name)
def test_spaces_of_one_kind_are_searched(parameter: Parameter, objectives: int) -> None:
    from spica_async.sampling.designer import GaussianProcessDesigner

    names = [f"y{i}" for i in range(objectives)]
    study = Study("agg", 3, (parameter,), tuple(Objective(n, maximize=False) for n in names))
    history = tuple(
        Trial(n, draw(study, n), {name: math.cos(n + i) for i, name in enumerate(names)})
        for n in range(9)
    )
    request = AskRequest(9, 2, history, ())
    check(study, GaussianProcessDesigner(study).suggest(request), 2)


def searched(study: Study, trials: int) -> Iterator[dict[str, float]]:
    from spica_async.sampling.designer import GaussianProcessDesigner

    designer = GaussianProcessDesigner(study)
    history: list[Trial] = []
    while len(history) < trials:
        answer = designer.suggest(AskRequest(len(history), 8, tuple(history), ()))
        history += [trial_of(study, Suggestion(len(history) + i, a)) for i, a in enumerate(answer)]
    return (trial.metrics for trial in history if trial.metrics is not None)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("objective", TWO, ids=lambda objective: objective.name)
def test_the_search_beats_draws_in_the_objectives_own_direction(objective: Objective) -> None:
    study = Study("agg", 3, PARAMETERS, (objective,))
    sign = 1 if objective.maximize else -1
    found = max(sign * metrics[objective.name] for metrics in searched(study, 40))
    drawn = max(sign * evaluate(draw(study, n))[objective.name] for n in range(40))
    assert found > drawn


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_search_of_two_objectives_covers_more_than_draws() -> None:
    study = Study("agg", 3, PARAMETERS, TWO)
    found = hypervolume(searched(study, 40))
    assert found > hypervolume(evaluate(draw(study, n)) for n in range(40))


def hypervolume(points: Iterator[dict[str, float]]) -> float:
    """Area between the front and the corner of no throughput and latency 40."""
    area, best = 0.0, 40.0
    for point in sorted(points, key=lambda p: (-p["throughput"], p["latency"])):
        if point["throughput"] > 0 and point["latency"] < best:
            area += point["throughput"] * (best - point["latency"])
            best = point["latency"]
    return area

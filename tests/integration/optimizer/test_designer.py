"""Vizier's bandit as the sampler builds it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.sampling_histories import SPACES, request_of, study_of

from spica_async.optimizer.assignments import accept
from spica_async.optimizer.process import SamplerProcess
from spica_async.optimizer.quasi_random import draw
from spica_async.optimizer.types import Objective, Study, Suggestion, Trial
from spica_async.optimizer.wire import AskRequest
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
        await sampler.observe([*trials, Trial(7, seeds[7].assignment, None, {"distance": 0.5})])
        (suggestion,) = await sampler.ask(1)
    assert suggestion.stand_in is None
    assert suggestion.number == 8
    check(study, [suggestion.assignment], 1)
    stats = sampler.stats
    assert stats.stand_ins == 0
    assert stats.start_seconds > 0
    assert 0 <= stats.compile_wait_seconds <= stats.compile_seconds > 0


def test_padding_is_the_same_whether_trials_are_merged_or_come_at_once() -> None:
    import numpy as np

    from spica_async.optimizer.padding import Tier

    tier = Tier(8)
    numbers, labels = np.arange(10.0).reshape(5, 2), np.arange(5, dtype=np.int32).reshape(5, 1)
    nothing = np.zeros((5, 0), dtype=np.int32)
    for whole in (numbers, labels):
        told, pending = tier.pad_features(whole[:3]), tier.pad_features(whole[3:])
        merged = tier.pad_features(np.concatenate([told.unpad(), pending.unpad()]))
        once = tier.pad_features(whole)
        fill = -1 if whole is labels else np.nan
        expected = np.concatenate([whole, np.full((3, whole.shape[1]), fill)])
        for padded in (merged, once):
            np.testing.assert_array_equal(padded.padded_array, expected)
            np.testing.assert_array_equal(padded.is_missing[0], [False] * 5 + [True] * 3)
            np.testing.assert_array_equal(padded._mask[:, 0], [True] * 5 + [False] * 3)
    # Features of no width have all rows, so that those of the other kind tell which are missing.
    empty = tier.pad_features(nothing)
    assert empty.unpad().shape == (8, 0)
    assert tier.pad_features(np.concatenate([empty.unpad()] * 2)).shape == (8, 0)
    assert not empty.is_missing[0].any()


def test_labels_of_pending_trials_are_as_many_as_their_features() -> None:
    import numpy as np

    from spica_async.optimizer.padding import Tier

    tier = Tier(8)
    told = tier.pad_labels(np.arange(3.0).reshape(3, 1))
    np.testing.assert_array_equal(told.unpad(), [[0.0], [1.0], [2.0]])
    features = [tier.pad_features(np.ones((count, 2))).unpad() for count in (3, 2)]
    tier.pad_features(np.concatenate(features))
    every = tier.pad_labels(np.concatenate([told.unpad(), np.zeros((8, 1))]))
    assert every.shape == (8, 1)
    np.testing.assert_array_equal(every.unpad(), [[0.0], [1.0], [2.0], [0.0], [0.0]])
    # Nothing told, two pending.
    tier.pad_features(np.concatenate([tier.pad_features(np.ones((n, 2))).unpad() for n in (0, 2)]))
    assert tier.pad_labels(np.zeros((8, 1))).unpad().shape == (2, 1)


def test_an_array_that_is_padded_can_end_the_ask() -> None:
    import numpy as np

    from spica_async.optimizer.padding import Tier

    def stop() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        Tier(8, stop).pad_features(np.ones((1, 1)))
    with pytest.raises(InterruptedError):
        Tier(8, stop).pad_labels(np.ones((1, 1)))


def test_jax_goes_without_a_cache_that_it_cannot_have(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from spica_async.optimizer.jax_setup import _cache_folder

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = _cache_folder()
    assert folder is not None
    assert folder.is_dir()
    assert "jax-" in folder.name
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert _cache_folder() is None


def test_an_interruption_ends_what_is_compiled_ahead() -> None:
    from spica_async.optimizer.designer import FastDesigner

    designer = FastDesigner(Study("agg", 3, PARAMETERS, ONE))
    designer.prepare(AskRequest(0, 8, (), ()), interrupted=lambda: True)
    assert not designer._rehearsed


COUNTS = [(8, 0, 8), (16, 0, 8), (17, 7, 1), (17, 8, 4), (20, 9, 2), (29, 2, 16), (40, 8, 8)]
"""Trials told, pending and asked for, in the order of a search."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("objectives", [1, 2])
@pytest.mark.parametrize("space", SPACES)
def test_within_a_tier_nothing_is_compiled_after_it_is_prepared(
    space: str, objectives: int
) -> None:
    from spica_async.optimizer.designer import FastDesigner

    study = study_of(space, objectives)
    designer = FastDesigner(study)
    # Everything that may be told next, so that each of the counts below is prepared for.
    designer.prepare(request_of(study, 0, 42, 6), interrupted=lambda: False)
    programs = designer.clock.programs
    for counts in COUNTS:
        assert len(designer.suggest(request_of(study, *counts))) == counts[2]
        assert designer.clock.programs == programs, counts


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_nearly_full_tier_has_the_next_one_prepared() -> None:
    from spica_async.optimizer.designer import FastDesigner

    study = study_of("mixed", 2)
    designer = FastDesigner(study)
    designer.prepare(request_of(study, 48, 0, 8), interrupted=lambda: False)
    # The labels of so many trials in the next tier; all else does not depend on the number.
    designer.prepare(request_of(study, 56, 0, 8), interrupted=lambda: False)
    programs = designer.clock.programs
    designer.suggest(request_of(study, 64, 0, 8))
    assert designer.clock.programs == programs


async def suggested(study: Study, *, replace_always: bool) -> list[Suggestion]:
    """Rounds with trials told late and out of order, and one that failed."""
    made: list[Suggestion] = []
    async with SamplerProcess(study) as sampler:
        for count, told in ((8, [5, 0, 1, 3]), (4, [2, 9, 7]), (2, [4, 11, 6]), (3, [])):
            if replace_always:
                await sampler._discard()
            made += await sampler.ask(count)
            trials = [trial_of(study, made[number]) for number in told]
            if 7 in told:
                trials[-1] = Trial(7, made[7].assignment, None)
            await sampler.observe(trials)
    assert sampler.stats.stand_ins == 0
    # The first ask is for seeds, which need no process.
    assert sampler.stats.restarts == (3 if replace_always else 0)
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


@pytest.mark.parametrize("has_news", [True, False])
def test_the_designer_exploits_what_is_new_although_later_suggestions_are_pending(
    *, has_news: bool
) -> None:
    from vizier import algorithms as vza
    from vizier._src.algorithms.designers.gp_ucb_pe import _has_new_completed_trials

    from spica_async.optimizer.designer import VizierDefaultDesigner

    study = Study("agg", 3, PARAMETERS, ONE)
    trials = history_of(study, 6)
    history = tuple(trials[number] for number in (0, 1, 3))
    pending = tuple(Suggestion(number, trials[number].assignment) for number in (2, 4, 5))
    seen: list[bool] = []

    class Bandit:
        def update(self, told: vza.CompletedTrials, waiting: vza.ActiveTrials) -> None:
            seen.append(_has_new_completed_trials(told.trials, waiting.trials))

        def suggest(self, count: int) -> list[Any]:
            return []

    request = AskRequest(6, 2, history, pending, has_news)
    VizierDefaultDesigner(study)._ask(Bandit(), request)
    assert seen == [has_news]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_answer_depends_on_the_request_alone() -> None:
    from spica_async.optimizer.designer import FastDesigner

    study = Study("agg", 3, PARAMETERS, TWO)
    history = history_of(study, 12)
    pending = (Suggestion(12, draw(study, 12)), Suggestion(13, draw(study, 13)))
    request = AskRequest(14, 2, history, pending)
    designer = FastDesigner(study)
    answer = designer.suggest(request)
    check(study, answer, 2)
    others = [
        AskRequest(14, 2, (*history, trial_of(study, pending[0])), pending[1:]),
        AskRequest(15, 2, history, (*pending, Suggestion(14, draw(study, 14)))),
    ]
    assert all(designer.suggest(other) != answer for other in others)
    assert designer.suggest(request) == answer
    assert FastDesigner(Study("agg", 4, PARAMETERS, TWO)).suggest(request) != answer


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
    "full tier": lambda study: AskRequest(63, 2, history_of(study, 63), ()),
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("objectives", [ONE, TWO], ids=["one", "two"])
def test_odd_histories_are_answered(objectives: tuple[Objective, ...]) -> None:
    from spica_async.optimizer.designer import FastDesigner

    study = Study("agg", 3, PARAMETERS, objectives)
    designer = FastDesigner(study)  # One for all, which saves compilations.
    for request_for in ODD_HISTORIES.values():
        request = request_for(study)
        check(study, designer.suggest(request), request.count)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("objectives", [1, 3])
@pytest.mark.parametrize("parameter", PARAMETERS[:3], ids=lambda parameter: parameter.name)
def test_spaces_of_one_kind_are_searched(parameter: Parameter, objectives: int) -> None:
    from spica_async.optimizer.designer import FastDesigner

    names = [f"y{i}" for i in range(objectives)]
    study = Study("agg", 3, (parameter,), tuple(Objective(n, maximize=False) for n in names))
    history = tuple(
        Trial(n, draw(study, n), {name: math.cos(n + i) for i, name in enumerate(names)})
        for n in range(9)
    )
    request = AskRequest(9, 2, history, ())
    check(study, FastDesigner(study).suggest(request), 2)


def searched(study: Study, trials: int) -> Iterator[dict[str, float]]:
    from spica_async.optimizer.designer import FastDesigner

    designer = FastDesigner(study)
    history = list(history_of(study, 8))
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

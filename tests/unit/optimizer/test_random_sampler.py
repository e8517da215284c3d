"""The sampler that learns nothing, and with it what all samplers do with their trials."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from schemas.config import OptimizerSettings
from spica_async.optimizer.assignments import centre
from spica_async.optimizer.ledger import TrialLedger
from spica_async.optimizer.port import Sampler
from spica_async.optimizer.profiles import open_sampler
from spica_async.optimizer.quasi_random import draw
from spica_async.optimizer.random_sampler import RandomSampler
from spica_async.optimizer.types import Objective, Study, Suggestion, Trial
from spica_async.space.parameters import Assignment, DiscreteParameter, FloatParameter

STUDY = Study(
    "agg",
    7,
    (FloatParameter("x", 0.0, 1.0), DiscreteParameter("n", (1, 2, 4), log=True)),
    (Objective("throughput", maximize=True),),
)
OWN: Assignment = {"x": 0.25, "n": 4}


async def test_it_proposes_the_centre_and_then_draws() -> None:
    sampler: Sampler = RandomSampler(STUDY)
    suggestions = [*await sampler.ask(1), *await sampler.ask(2)]
    assert suggestions == [
        Suggestion(0, centre(STUDY.parameters)),
        Suggestion(1, draw(STUDY, 1)),
        Suggestion(2, draw(STUDY, 2)),
    ]
    assert (sampler.stats.asks, sampler.stats.suggestions, sampler.stats.stand_ins) == (2, 3, 0)


async def test_placed_trials_are_numbered_on_and_observed_like_others() -> None:
    sampler = RandomSampler(STUDY)
    await sampler.ask(1)
    placed = await sampler.place([{"n": 4.0, "x": 0.25}, {"x": 1, "n": 1}])
    assert placed == [Suggestion(1, OWN), Suggestion(2, {"x": 1.0, "n": 1})]
    assert list(placed[0].assignment) == ["x", "n"]
    assert await sampler.ask(1) == [Suggestion(3, draw(STUDY, 3))]
    await sampler.observe([Trial(1, OWN, {"throughput": 1.0})])
    with pytest.raises(ValueError, match="trial 1 answers no pending suggestion"):
        await sampler.observe([Trial(1, OWN, None)])
    assert (sampler.stats.asks, sampler.stats.suggestions) == (2, 2)


async def test_nothing_is_placed_when_one_assignment_is_not_allowed() -> None:
    sampler = RandomSampler(STUDY)
    with pytest.raises(ValueError, match="'n' cannot be 3"):
        await sampler.place([OWN, {"x": 0.5, "n": 3}])
    assert [suggestion.number for suggestion in await sampler.place([OWN])] == [0]


async def test_it_refuses_what_it_cannot_do() -> None:
    with pytest.raises(ValueError, match="no parameter"):
        RandomSampler(Study("agg", 1, (), STUDY.objectives))
    with pytest.raises(ValueError, match="cannot suggest 0 trials"):
        await RandomSampler(STUDY).ask(0)


async def test_the_profile_random_needs_no_process() -> None:
    async with open_sampler(
        STUDY, OptimizerSettings(profile="random"), suggest_timeout_seconds=1.0
    ) as sampler:
        assert isinstance(sampler, RandomSampler)


class LedgerMachine(RuleBasedStateMachine):
    """A ledger beside a plain list of what became of each trial."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = TrialLedger(STUDY)
        self.observed: list[bool] = []
        self.is_news = False

    def assignment(self, number: int) -> Assignment:
        return OWN if number % 2 else draw(STUDY, number)

    @rule(count=st.integers(1, 3))
    def suggest(self, count: int) -> None:
        request = self.ledger.request(count)
        assert request.first == len(self.observed)
        numbers = range(request.first, request.first + count)
        self.ledger.answer(request, [Suggestion(n, self.assignment(n)) for n in numbers])
        self.observed += [False] * count
        self.is_news = False

    @rule(count=st.integers(0, 3))
    def place(self, count: int) -> None:
        numbers = range(len(self.observed), len(self.observed) + count)
        placed = self.ledger.place([self.assignment(number) for number in numbers])
        assert [suggestion.number for suggestion in placed] == list(numbers)
        self.observed += [False] * count

    @rule(number=st.integers(0, 12), value=st.sampled_from([1.0, None, math.nan]))
    def observe(self, number: int, value: float | None) -> None:
        metrics = None if value is None else {"throughput": value}
        trial = Trial(number, self.assignment(number), metrics)
        sound = value is None or math.isfinite(value)
        if number < len(self.observed) and not self.observed[number] and sound:
            self.ledger.observe([trial])
            self.observed[number] = True
            self.is_news = True
        else:
            with pytest.raises(ValueError, match=f"trial {number}"):
                self.ledger.observe([trial])

    @invariant()
    def every_trial_is_either_observed_or_pending(self) -> None:
        request = self.ledger.request(1)
        assert request.has_news is self.is_news
        assert [trial.number for trial in request.history] == [
            number for number, observed in enumerate(self.observed) if observed
        ]
        assert [suggestion.number for suggestion in request.pending] == [
            number for number, observed in enumerate(self.observed) if not observed
        ]


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)

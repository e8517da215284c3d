"""What is measured again once the search is over, and what comes of it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.searching import Run, run_search, throughput_of

from schemas.config import SmartSearchConfig
from schemas.journal import Measured
from schemas.messages import EvaluationRequest, EvaluationResult, Measurement, Sample
from spica_async.judge.ranking import MIN_REPLICATES, ranking
from spica_async.judge.scoring import Candidate, make_candidate, measured_again
from spica_async.plan.types import SweepPlan
from spica_async.search.confirmation import Confirmation, Replay

MakeConfig = Callable[..., SmartSearchConfig]
MakePlan = Callable[..., SweepPlan]


def candidate(name: str, value: float, *, noisy: bool = True) -> Candidate:
    return make_candidate(
        candidate_id=name,
        branch="agg",
        number=int(name),
        sample={"used_gpus": 1, "router_mode": "kv_router" if noisy else "round_robin"},
        reports=[{"output_throughput_tok_s": value}],
        goal=SmartSearchConfig.model_fields["goal"].get_default(call_default_factory=True),
        facts={},
    )


class Sweep:
    """Candidates that a confirmation has measured again, each around a mean of its own."""

    def __init__(
        self,
        config: SmartSearchConfig,
        *candidates: Candidate,
        deviation: float = 0.0,
        baseline: Candidate | None = None,
    ) -> None:
        self.config = config
        self.confirmation = Confirmation(config, enabled=True)
        self.candidates = {one.candidate_id: one for one in candidates}
        self.means = {one.candidate_id: one.score for one in candidates}
        self.baseline = baseline
        self.done: list[Replay] = []
        self._deviation = deviation
        self._random = random.Random(1)

    @property
    def known(self) -> list[Candidate]:
        return list(self.candidates.values())

    def end(self, replay: Replay, *, fails: bool = False) -> None:
        if self.baseline is not None and replay.candidate_id == self.baseline.candidate_id:
            self.baseline = measured_again(
                self.baseline, replay.replicate, self.baseline.report, self.config.goal
            )
            self.confirmation.ended(replay, sound=True)
            self.done.append(replay)
            return
        one = self.candidates[replay.candidate_id]
        value = self.means[replay.candidate_id] * self._random.gauss(1.0, self._deviation)
        if replay.load == 1.0:
            report = None if fails else {"output_throughput_tok_s": value}
            one = measured_again(one, replay.replicate, report, self.config.goal)
        elif not fails:
            one = replace(one, loads={**one.loads, replay.load: value})
        self.candidates[replay.candidate_id] = one
        self.confirmation.ended(replay, sound=not fails)
        self.done.append(replay)

    def run(self, *, at_once: int = 1, fails: Callable[[Replay], bool] = lambda _: False) -> None:
        flying: list[Replay] = []
        while True:
            replay = self.confirmation.next_replay(self.known, self.baseline)
            if replay is not None and len(flying) < at_once:
                assert replay not in self.done + flying
                self.confirmation.started(replay)
                flying.append(replay)
            elif flying:
                ended = flying.pop(self._random.randrange(len(flying)))
                self.end(ended, fails=fails(ended))
            else:
                break
        assert self.confirmation.is_over(self.known, self.baseline)

    def counts(self, load: float = 1.0) -> Counter[str]:
        return Counter(replay.candidate_id for replay in self.done if replay.load == load)


@pytest.fixture
def config(make_config: MakeConfig) -> Callable[..., SmartSearchConfig]:
    return lambda **confirm: make_config(confirm={"top": 2, **confirm})


def test_the_best_are_measured_until_their_means_are_known(
    config: Callable[..., SmartSearchConfig],
) -> None:
    sweep = Sweep(config(), *(candidate(str(n), 10.0 + n) for n in range(4)), deviation=0.001)
    sweep.run()
    assert sweep.counts() == {"3": MIN_REPLICATES - 1, "2": MIN_REPLICATES - 1}
    assert sweep.counts(0.8) == sweep.counts(1.2) == {"3": 1, "2": 1}


def test_what_differs_much_takes_all_replays_in_equal_parts(
    config: Callable[..., SmartSearchConfig],
) -> None:
    sweep = Sweep(config(max_replays=14), *(candidate(n, 50.0) for n in "12"), deviation=0.3)
    sweep.run(at_once=4)
    assert sweep.counts() == {"1": 7, "2": 7}
    assert sweep.confirmation.replays == 14 + 4


def test_the_baseline_is_confirmed_with_the_best_under_its_own_load(
    config: Callable[..., SmartSearchConfig],
) -> None:
    listed = [candidate(str(n), 10.0 + n) for n in range(4)]
    sweep = Sweep(config(), *listed, baseline=candidate("9", 1.0))
    sweep.run(at_once=3)
    assert sweep.counts() == dict.fromkeys("329", MIN_REPLICATES - 1)
    assert set(sweep.counts(0.8)) == {"3", "2"}
    exact = Sweep(config(), *listed, baseline=candidate("9", 1.0, noisy=False))
    exact.run()
    assert "9" not in exact.counts()
    alone = Sweep(config(), baseline=candidate("9", 1.0))
    alone.run()
    assert alone.done == []


def test_a_lucky_one_gives_way_to_the_next(config: Callable[..., SmartSearchConfig]) -> None:
    sweep = Sweep(config(), *(candidate(str(n), 10.0 + n) for n in range(4)))
    sweep.means["3"] = 1.0
    sweep.run()
    assert set(sweep.counts()) == {"3", "2", "1"}
    # Of those that are best in the end.
    assert set(sweep.counts(0.8)) == {"2", "1"}


def test_what_does_not_differ_is_not_measured_again(
    config: Callable[..., SmartSearchConfig],
) -> None:
    exact = [candidate(n, 5.0, noisy=False) for n in "12"]
    sweep = Sweep(config(), *exact)
    sweep.run()
    assert sweep.done == []
    asked_for = Sweep(config(enabled="on"), *exact)
    asked_for.run()
    assert asked_for.counts() == {"1": 1, "2": 1}
    assert asked_for.counts(0.8) == {"1": 1, "2": 1}


def test_a_robust_goal_measures_other_loads_of_what_does_not_differ(
    make_config: MakeConfig,
) -> None:
    config = make_config(goal={"robust": True}, confirm={"top": 1})
    sweep = Sweep(config, candidate("1", 5.0, noisy=False), candidate("2", 4.0, noisy=False))
    sweep.run()
    assert sweep.done == [Replay("1", 0, 0.8), Replay("1", 0, 1.2)]


def test_all_of_a_front_are_measured_again(make_config: MakeConfig) -> None:
    goal = {"target": "pareto", "pareto_objectives": ["throughput", "e2e_latency"]}
    config = make_config(goal=goal, confirm={"top": 1})
    known = [
        make_candidate(
            candidate_id=name,
            branch="agg",
            number=int(name),
            sample={"used_gpus": 1, "router_mode": "kv_router"},
            reports=[{"output_throughput_tok_s": tokens, "mean_e2e_latency_ms": latency}],
            goal=config.goal,
            facts={},
        )
        for name, tokens, latency in [("1", 9.0, 5.0), ("2", 8.0, 3.0), ("3", 7.0, 4.0)]
    ]
    confirmation = Confirmation(config, enabled=True)
    asked: Counter[str] = Counter()
    while (replay := confirmation.next_replay(known)) is not None:
        confirmation.started(replay)
        asked[replay.candidate_id] += 1
    assert asked == {"1": MIN_REPLICATES - 1, "2": MIN_REPLICATES - 1}


@pytest.mark.parametrize("confirm", [{"enabled": "off", "top": 5}, {"max_replays": 0, "loads": []}])
def test_nothing_is_measured_where_nothing_may_be(
    make_config: MakeConfig, confirm: dict[str, object]
) -> None:
    sweep = Sweep(make_config(confirm=confirm), candidate("1", 5.0))
    sweep.run()
    assert sweep.done == []


def test_replays_that_fail_count_and_are_not_tried_again(
    config: Callable[..., SmartSearchConfig],
) -> None:
    sweep = Sweep(config(), candidate("1", 5.0))
    sweep.run(fails=lambda replay: replay.replicate != 2)
    assert sweep.counts() == {"1": MIN_REPLICATES - 1}
    assert len(set(sweep.done)) == len(sweep.done)
    (known,) = sweep.known
    assert (known.replicates, known.taken) == (2, frozenset(range(4)))


@settings(max_examples=60)
@given(
    values=st.lists(st.tuples(st.floats(1, 100), st.booleans()), min_size=1, max_size=8),
    deviation=st.sampled_from([0.0, 0.01, 0.3]),
    most=st.integers(0, 30),
    at_once=st.integers(1, 6),
    failing=st.integers(0, 7),
)
def test_it_ends_within_its_replays_and_no_replay_comes_twice(  # noqa: PLR0917  # hypothesis
    make_config: MakeConfig,
    values: list[tuple[float, bool]],
    deviation: float,
    most: int,
    at_once: int,
    failing: int,
) -> None:
    listed = [candidate(str(n), value, noisy=noisy) for n, (value, noisy) in enumerate(values)]
    sweep = Sweep(
        make_config(confirm={"max_replays": most, "top": 3}), *listed, deviation=deviation
    )
    sweep.run(at_once=at_once, fails=lambda replay: replay.replicate == failing)
    assert sum(sweep.counts().values()) <= most
    assert len(set(sweep.done)) == len(sweep.done) == sweep.confirmation.replays
    exact = {one.candidate_id for one in listed if one.sample["router_mode"] == "round_robin"}
    assert not exact & {replay.candidate_id for replay in sweep.done}


NOISY_SPACE = {
    "agg_max_num_batched_tokens": [8192, 16384, 32768],
    "agg_max_num_seqs": [256, 512],
    "router_mode": ["kv_router"],
}


def noisy_measure(deviation: float) -> Callable[[Sample], Measurement]:
    pace = random.Random(1)

    def measure(sample: Sample) -> Measurement:
        value = (100.0 + throughput_of(sample)) * pace.gauss(1.0, deviation)
        return Measurement(outcome="feasible", report={"output_throughput_tok_s": value})

    return measure


async def search(config: SmartSearchConfig, make_plan: MakePlan, deviation: float) -> Run:
    return await run_search(
        make_plan(config),
        slots=3,
        measure=noisy_measure(deviation),
        enumerate_points=True,
    )


async def test_a_search_confirms_its_best(
    make_config: MakeConfig, make_sweep_plan: MakePlan
) -> None:
    config = make_config(NOISY_SPACE, confirm={"top": 2, "loads": [1.0]})
    run = await search(config, make_sweep_plan, 0.01)
    assert run.search.is_over
    assert run.search.confirmed == 2
    first, second, *others = ranking(run.search.candidates, config.goal, confirmed=2)
    assert first.confirmed
    assert second.confirmed
    assert not any(one.loads for one in (first, second, *others))
    extra = len(run.worker.requests) - 12
    assert extra == run.search.confirmation.replays + run.branch.replicates
    # A quarter of the twelve may be measured again during the search.
    assert 0 < run.branch.replicates <= 3
    assert len({request.evaluation_id for request in run.worker.requests}) == 12 + extra
    assert len(run.ledger.records) == 12
    assert max(record.replicates for record in run.ledger.records) > 1


async def test_other_loads_are_asked_for_by_their_requests(
    make_config: MakeConfig, make_sweep_plan: MakePlan
) -> None:
    config = make_config(NOISY_SPACE, confirm={"top": 1, "loads": [0.5, 2.0]})
    run = await search(config, make_sweep_plan, 0.0)
    (best, *_) = ranking(run.search.candidates, config.goal, confirmed=2)
    assert set(best.loads) == {"0.5", "2"}
    loads: Counter[int | None] = Counter(
        request.load.concurrency for request in run.worker.requests
    )
    assert (loads[2], loads[8]) == (1, 1)
    assert {load_requests(request) for request in run.worker.requests} == {(2, 4), (4, 8), (8, 16)}


async def test_a_load_under_which_it_fails_leaves_it_as_it_is(
    make_config: MakeConfig, make_sweep_plan: MakePlan
) -> None:
    config = make_config(NOISY_SPACE, confirm={"top": 1, "loads": [1.0]})
    run = await search(config, make_sweep_plan, 0.0)
    (before, *_) = run.branch.candidates
    result = EvaluationResult(
        evaluation_id="again",
        sweep_id="sweep",
        worker="fake",
        measurement=Measurement(outcome="failed", cause="replay_error", detail="it broke"),
        wall_seconds=1.0,
    )
    fact = Measured(
        at=1.0, branch="agg", number=before.number, result=result, waited_seconds=0.0, load=0.8
    )
    assert not run.branch.measured_again(fact)
    assert run.branch.candidate(before.number) == before


def load_requests(request: EvaluationRequest) -> tuple[int | None, int]:
    return request.load.concurrency, request.load.requests

"""Whatever goes wrong on the way, each request ends with one result, and a search as it should."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from support.lossy import Fault, LossyWorker, scripts
from support.searching import SEARCHED, run_search, succeed
from support.virtual_time import run_in_virtual_time

from schemas.config import SmartSearchConfig
from schemas.messages import EvaluationRequest, EvaluationResult, SyntheticLoad
from spica_async.bus.memory import MemoryBus
from spica_async.bus.topology import declare, requests_queue
from spica_async.evaluate.fleet import Fleet
from spica_async.evaluate.in_flight import Evaluations
from spica_async.plan.types import SweepPlan
from spica_async.search.schedule.state import Phase

FOREVER_SECONDS = 1e5


@given(
    st.lists(st.sampled_from(Fault), max_size=30), st.integers(1, 3), st.sampled_from([1, 4, 20])
)
@settings(max_examples=50, deadline=None)
def test_each_request_ends_with_exactly_one_result(
    faults: list[Fault], workers: int, parallel: int
) -> None:
    names = [f"e{number}" for number in range(10)]

    async def main() -> tuple[list[EvaluationResult], dict[str, int]]:
        bus = MemoryBus()
        await declare(bus, requests_queue("engine"))
        async with AsyncExitStack() as stack, asyncio.timeout(FOREVER_SECONDS):
            fleet = [
                LossyWorker(bus, f"w{number}", script, succeed)
                for number, script in enumerate(scripts(faults, workers))
            ]
            for worker in fleet:
                await stack.enter_async_context(worker.running())
            evaluations = await stack.enter_async_context(
                Evaluations(bus, Fleet("engine"), coordinator="sweep", parallel=parallel).open()
            )
            results = await asyncio.gather(*(evaluations.evaluate(request(name)) for name in names))
        return results, dict(sum((worker.served for worker in fleet), Counter()))

    with capture_logs():
        results, served = run_in_virtual_time(main())
    assert [result.evaluation_id for result in results] == names
    failures = [result.measurement for result in results if result.measurement.report is None]
    assert {failure.cause for failure in failures} <= {"delivery_limit"}
    assert len(failures) <= faults.count(Fault.POISONOUS)
    assert set(served) == set(names)


def request(name: str) -> EvaluationRequest:
    return EvaluationRequest(
        evaluation_id=name,
        sweep_id="sweep",
        sample={"backend": name},
        load=SyntheticLoad(isl=1, osl=1, requests=1, concurrency=1),
    )


@pytest.mark.parametrize("seed", range(8))
def test_a_search_ends_with_as_many_unique_successes_as_it_was_to_find(
    make_config: Callable[..., SmartSearchConfig],
    make_sweep_plan: Callable[..., SweepPlan],
    seed: int,
) -> None:
    config = make_config(
        {**SEARCHED, "deployment_mode": ["disagg", "agg"]},
        sweep={"max_rounds": 3, "candidates_per_round": 4, "parallel_evals": 6},
    )
    chance = random.Random(seed)
    faults = chance.choices(list(Fault), k=60)

    def lossy(bus: MemoryBus) -> list[LossyWorker]:
        return [
            LossyWorker(bus, f"w{number}", script, succeed)
            for number, script in enumerate(scripts(faults, 3))
        ]

    with capture_logs():
        run = run_in_virtual_time(run_search(make_sweep_plan(config), make_workers=lossy))
    for branch in run.search.branches:
        assert branch.state.phase is Phase.COMPLETED
        assert branch.state.tally["feasible"] == 12
    ids = [record.candidate_id for record in run.ledger.records]
    assert len(ids) == len(set(ids))
    samples = {str(candidate.sample) for candidate in run.search.candidates}
    assert len(samples) == len(run.search.candidates) == 24
    assert {record.cause for record in run.ledger.records} <= {None, "delivery_limit"}

"""How much of a search's time its slots replay, when each replay takes a second."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from support.broker import BrokerNode
from support.planning import plan
from support.searching import SEARCHED, Ledger, NoLog

from over_broker.coordinator import opened_bus
from over_broker.figures import Figure
from over_broker.fleet import FleetOptions, ready, running_fleet
from over_broker.processes import Meter
from spica_async.evaluate.fleet import Fleet
from spica_async.evaluate.in_flight import Evaluations
from spica_async.optimizer.proposals import EnumeratedProposer, Proposer
from spica_async.search.branches import Search
from spica_async.space.branch import BranchSpace

_FINGERPRINT = "busy-slots"
_SLOTS = 8
_LEAST_PERCENT = 95.0


async def measure(node: BrokerNode, *, quick: bool) -> list[Figure]:
    """One round of one search, from before its first proposal to after its last verdict.

    Real children sleep, eight in one worker, and proposals come from a list. What is told is how
    long the children slept, by the time of all eight slots.
    """
    count = 24 if quick else 64
    sweep = plan(
        SEARCHED,
        sweep={"max_rounds": 1, "candidates_per_round": count, "parallel_evals": _SLOTS},
    )
    fleet = FleetOptions(node.url(), _FINGERPRINT, slots=_SLOTS, sleeping=True)
    ledger = Ledger()
    async with opened_bus(fleet.url, _FINGERPRINT) as bus:
        with running_fleet(fleet) as worker:
            await ready(bus, fleet, worker)
            async with Evaluations(
                bus, Fleet(_FINGERPRINT), coordinator=_FINGERPRINT, parallel=_SLOTS
            ).open() as evaluations:
                search = Search(
                    sweep_id=_FINGERPRINT,
                    plan=sweep,
                    trace=None,
                    log=NoLog(),
                    observer=ledger,
                    elapsed=time.monotonic,
                )
                meter = Meter(node.pid, os.getpid(), worker.pid)
                await search.run(_proposals_from_a_list, evaluations)
                spent = meter.spent()
    slept = [record.timings.replay for record in ledger.records if record.timings is not None]
    assert len(slept) == count
    return [
        Figure(
            f"slots busy with replays of a second, {_SLOTS} slots",
            100 * sum(slept) / (_SLOTS * spent.seconds),
            "%",
            f"{count} replays took {sum(slept):.2f} s of slots in a search of"
            f" {spent.seconds:.2f} s;"
            f" others used {spent.others_share:.0%} of the CPU",
            at_least=_LEAST_PERCENT,
            digits=1,
        )
    ]


@asynccontextmanager
async def _proposals_from_a_list(space: BranchSpace) -> AsyncIterator[Proposer]:
    yield EnumeratedProposer(space, seed=0)

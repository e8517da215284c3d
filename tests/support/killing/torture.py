"""One sweep whose coordinators, workers and broker are killed time and again."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from support.broker import BrokerNode
from support.faults.evaluator import score
from support.faults.fates import Fates
from support.faults.workers import Workers
from support.killing.checks import check_published
from support.killing.client import Driver, Found, found_in
from support.killing.driver import Command

_WORKERS: Final = 3
_REPLAY_SECONDS: Final = 0.5
_COORDINATOR_LIVES: Final = (0.3, 2.5)
_OTHERS_PAUSE: Final = (0.2, 1.2)
_BROKER_SHARE: Final = 0.2


@dataclass
class Figures:
    """What a torture came to.

    Attributes:
        kills: by what was killed.
        candidates: that the sweep has found.
        evaluations: that workers have begun.
        runs: of the sweep.
        events: that were published.
        seconds: that it took.
    """

    kills: Counter[str] = field(default_factory=Counter)
    candidates: int = 0
    evaluations: int = 0
    runs: int = 0
    events: int = 0
    seconds: float = 0.0


async def torture(
    node: BrokerNode,
    folder: Path,
    journal: str,
    *,
    seed: int,
    kills: int,
    per_branch: int,
    report: Callable[[str], None] = lambda _: None,
) -> Figures:
    """Kill so often, let the sweep end, and check that it came to exactly its budget.

    Args:
        node: that runs.
        folder: takes everything.
        journal: URL.
        seed: of what is killed, and when.
        kills: of everything together.
        per_branch: candidates of each of two branches.
        report: takes a line now and then.

    Raises:
        AssertionError: something was lost, or counted twice.
    """
    chance = random.Random(seed)
    figures = Figures()
    clock = asyncio.get_running_loop().time
    began = clock()
    fates = Fates(folder / "fates")
    command = Command(
        "tortured", journal, node.url(), str(folder), schedule="continuous", per_branch=per_branch
    )
    async with (
        Driver.open() as driver,
        Workers.open(node.url(), fates, seconds=_REPLAY_SECONDS) as workers,
    ):
        for _ in range(_WORKERS):
            workers.start()
        enough = asyncio.Event()

        def killed(what: str) -> None:
            figures.kills[what] += 1
            if figures.kills.total() % 10 == 0:
                report(f"{clock() - began:.0f} s: {figures.kills.total()} kills")
            if figures.kills.total() >= kills:
                enough.set()

        async def kill_others() -> None:
            while not enough.is_set():
                await asyncio.sleep(chance.uniform(*_OTHERS_PAUSE))
                if chance.random() < _BROKER_SHARE:
                    await asyncio.to_thread(node.kill)
                    killed("broker")
                    await asyncio.sleep(chance.uniform(0, 1))
                    await asyncio.to_thread(node.start)
                else:
                    worker = chance.choice(workers.running)
                    worker.kill_if_running()
                    killed("worker")
                    workers.start()

        async with asyncio.TaskGroup() as group:
            killing = group.create_task(kill_others())
            while not enough.is_set():
                life = chance.uniform(*_COORDINATOR_LIVES)
                answer = await driver.run(replace(command, die_after=life))
                figures.runs += 1
                assert answer.killed, f"it ended with {answer.code} before there were enough kills"
                killed("coordinator")
            await killing
        report(f"{clock() - began:.0f} s: enough; the sweep goes on to its end")
        answer = await driver.run(command)
        figures.runs += 1
        assert answer.code == 0, "it could not be resumed"
    found = found_in(folder / command.sweep_id)
    _check_whole(found, 2 * per_branch)
    figures.events = await check_published(command, found)
    figures.candidates = found.tally["feasible"]
    figures.evaluations = len(list((folder / "fates" / "started").iterdir()))
    figures.seconds = clock() - began
    return figures


def _check_whole(found: Found, budget: int) -> None:
    """Exactly its budget, each candidate once and with its own result."""
    assert found.status == "completed"
    assert found.tally["feasible"] == len(found.ranking) == budget
    configs = Counter(json.dumps(config, sort_keys=True) for config, *_ in found.ranking)
    assert set(configs.values()) == {1}
    for config, value, _ in found.ranking:
        assert value == score(config), "a candidate has another one's result"

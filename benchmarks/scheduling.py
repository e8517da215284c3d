"""Rounds against the continuous schedule, when replays take from 1 to 20 s.

    python benchmarks/scheduling.py
    python benchmarks/scheduling.py --slots 8 --seeds 1 --time-scale 0.25

Searches a space of eleven parameters with the fast optimizer, a worker's real slots and an
in-process bus; only the replays are simulated: they sleep for a time that depends on the sample,
and score what a function of the sample says. Five seeds at 8 slots, the first of them alone at 1,
2, 4 and 16; all on one core. Each search is kept in the output folder as soon as it has ended, and
run only if the same code has not run it. The whole takes about an hour. The exit code is 1 when the
continuous schedule misses a goal.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Literal

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # For `support`.

from support.planning import plan
from support.searching import Ledger, NoLog, sweep_of
from support.worker_desk import FakeSlot, feasible, open_desk
from synthetic.deployment import BEST_SCORE, SPACE, score_of, seconds_of
from synthetic.records import Records, digest_of

from schemas.messages import EvaluationRequest, Measurement
from spica_async.cli.logs import log_warnings_to_stderr
from spica_async.evaluate.fleet import Fleet
from spica_async.evaluate.in_flight import Evaluations
from spica_async.judge.verdict import study_objectives
from spica_async.optimizer.profiles import open_sampler
from spica_async.optimizer.proposals import Proposer, StudyProposer
from spica_async.optimizer.types import Study
from spica_async.search.branch_driver import SearchContext
from spica_async.search.branches import Branches
from spica_async.space.branch import BranchSpace
from spica_async.space.sample import sample_key
from workers.port import ChildDeaths

Schedule = Literal["rounds", "continuous"]

SCHEDULES: tuple[Schedule, ...] = ("rounds", "continuous")
JUDGED_SLOTS = 8
"""The number of slots that the goals are about, and that all seeds are run with."""

LEAST_BUSY = 0.9
ALIKE = 0.001
"""Bests that differ by less are alike: nobody measures a deployment so exactly."""

FINGERPRINT = "engine"

console = Console(width=150)


@dataclass(frozen=True, slots=True)
class Task:
    """One search; a replay of a second takes `time_scale` seconds."""

    schedule: Schedule
    slots: int
    seed: int
    time_scale: float

    @property
    def candidates(self) -> int:
        """Unique successes to find: enough that neither beginning nor end outweighs the rest."""
        return 16 * self.slots if self.slots < JUDGED_SLOTS else 128


@dataclass(frozen=True, slots=True)
class Record:
    """One search's outcome.

    Attributes:
        replays: when each began and ended, in seconds since the start of the search.
        ask_seconds: spent waiting for suggestions.
        scores: of the unique samples, in the order in which they were measured.
        duplicates: suggestions that were no new samples.
    """

    task: Task
    replays: tuple[tuple[float, float], ...]
    ask_seconds: float
    scores: tuple[float, ...]
    duplicates: int

    @property
    def first_began(self) -> float:
        """Seconds from the start, imports of the optimizer included, to the first replay."""
        return min(began for began, _ in self.replays)

    @property
    def seconds(self) -> float:
        """From the beginning of the first replay to the end of the last."""
        return max(ended for _, ended in self.replays) - self.first_began

    @property
    def busy(self) -> float:
        """The share of the slots' time in which they replayed, from the first to the last."""
        return self._busy_until(max(ended for _, ended in self.replays))

    @property
    def busy_while_asking(self) -> float:
        """The same until the last replay began: then there is nothing left for a free slot."""
        return self._busy_until(max(began for began, _ in self.replays))

    def _busy_until(self, end: float) -> float:
        replayed = sum(min(ended, end) - began for began, ended in self.replays)
        return replayed / (self.task.slots * (end - self.first_began))

    @property
    def best(self) -> float:
        """The best score as a share of what no sample exceeds."""
        return max(self.scores) / BEST_SCORE

    @property
    def best_of_first_half(self) -> float:
        """The same of what was measured first, up to half of the candidates."""
        return max(self.scores[: len(self.scores) // 2]) / BEST_SCORE


class SleepingSlots:
    """How slots evaluate: they sleep, and note when."""

    def __init__(self, time_scale: float) -> None:
        self.replays: list[tuple[float, float]] = []
        self._time_scale = time_scale
        self._began = time.perf_counter()

    async def __call__(
        self,
        slot: FakeSlot,  # noqa: ARG002  # the desk's
        request: EvaluationRequest,
        deaths: ChildDeaths,  # noqa: ARG002  # the desk's
    ) -> Measurement:
        """Take the sample's time."""
        began = time.perf_counter() - self._began
        await asyncio.sleep(self._time_scale * seconds_of(sample_key(request.sample)))
        self.replays.append((began, time.perf_counter() - self._began))
        return feasible(output_throughput_tok_s=score_of(request.sample))


async def carry_out(task: Task, log_folder: Path) -> Record:
    """Run one search."""
    sweep_plan = plan(
        SPACE,
        goal={"target": "throughput"},
        sweep={
            "schedule": task.schedule,
            "parallel_evals": task.slots,
            "max_rounds": task.candidates // task.slots,
            "random_seed": task.seed,
            "warm_start": False,
        },
    )
    config = sweep_plan.config

    @asynccontextmanager
    async def open_proposer(space: BranchSpace) -> AsyncIterator[Proposer]:
        study = Study(space.mode, task.seed, space.parameters, study_objectives(config.goal))
        async with open_sampler(
            study,
            config.sweep.optimizer,
            suggest_timeout_seconds=config.sweep.suggest_timeout_seconds,
            log_path=log_folder / "optimizer.log",
        ) as sampler:
            yield StudyProposer(space, sampler, finds_neighbours=True, seed=task.seed)

    sleeping = SleepingSlots(task.time_scale)
    desk = await open_desk()
    desk.behave = sleeping
    async with (
        desk.working(slots=task.slots, heartbeat_seconds=10),
        Evaluations(
            desk.bus, Fleet(FINGERPRINT), coordinator="sweep", parallel=task.slots
        ).open() as evaluations,
    ):
        context = SearchContext(sweep_of(sweep_plan), NoLog(), time.perf_counter)
        search = Branches(context, Ledger())
        await search.run(open_proposer, evaluations)
    (branch,) = search.branches
    if branch.stats.stand_ins:
        # What was measured then is a quasi-random draw.
        raise RuntimeError(f"{task}: the optimizer failed; see {log_folder}")
    return Record(
        task=task,
        replays=tuple(sleeping.replays),
        ask_seconds=branch.stats.suggest_seconds,
        scores=tuple(candidate.score for candidate in branch.candidates),
        duplicates=branch.state.duplicates,
    )


def main() -> int:
    """Run the searches that are missing, print the table, and tell whether the goals are met."""
    options = _options()
    os.sched_setaffinity(0, {options.core})
    log_warnings_to_stderr()
    code = digest_of("spica_async", "workers", "benchmarks/synthetic")
    records = Records(
        options.out / "scheduling.jsonl", Record, code_of=lambda _: code, fresh=options.fresh
    )
    wanted = list(_tasks(options))
    missing = [task for task in wanted if task not in records]
    console.print(
        f"One core ({options.core}); seeds {', '.join(map(str, options.seeds))};"
        f" {len(wanted)} searches, {len(missing)} of them to be run;"
        f" load average {os.getloadavg()[0]:.1f}."
    )
    for number, task in enumerate(missing, 1):
        console.print(f"{number} of {len(missing)}: {task}", highlight=False)
        records.add(asyncio.run(carry_out(task, options.out)))
    found = [records[task] for task in wanted]
    console.print(table(found))
    verdicts = goals([record for record in found if record.task.slots == JUDGED_SLOTS])
    for text, is_met in verdicts:
        console.print(f"{text}: {'[green]met[/]' if is_met else '[red]missed[/]'}")
    return 0 if all(is_met for _, is_met in verdicts) else 1


def table(records: Sequence[Record]) -> Table:
    """One row for each number of slots and schedule: medians, and in brackets each seed."""
    made = Table(
        title="Replays of 1 to 20 s: medians (and each seed)",
        caption="Busy and seconds are from the first replay's beginning to the last one's end;"
        " asking is until the last one's beginning.",
    )
    columns = ("slots", "schedule", "candidates", "busy, %", "busy while asking, %", "seconds")
    for column in (*columns, "optimizer, s", "duplicates", "best halfway, %", "best, %"):
        made.add_column(column, justify="left" if column == "schedule" else "right")
    groups: dict[tuple[int, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record.task.slots, record.task.schedule), []).append(record)
    for (slots, schedule), group in groups.items():
        made.add_row(
            str(slots),
            schedule,
            str(group[0].task.candidates),
            _each([100 * record.busy for record in group]),
            _each([100 * record.busy_while_asking for record in group]),
            f"{median(record.seconds for record in group):.0f}",
            f"{median(record.ask_seconds for record in group):.0f}",
            f"{median(record.duplicates for record in group):.0f}",
            f"{100 * median(record.best_of_first_half for record in group):.1f}",
            _each([100 * record.best for record in group]),
            end_section=schedule == SCHEDULES[-1],
        )
    return made


def goals(records: Sequence[Record]) -> list[tuple[str, bool]]:
    """What the continuous schedule is held to at the judged number of slots."""
    of = {name: [r for r in records if r.task.schedule == name] for name in SCHEDULES}
    found = []
    at = f"continuous, {JUDGED_SLOTS} slots"
    if of["continuous"]:
        # What the last replays leave free is a matter of the budget, not of the schedule.
        busy = median(record.busy_while_asking for record in of["continuous"])
        text = f"{at}: {busy:.1%} busy until the last replay begins, at least {LEAST_BUSY:.0%}"
        found.append((text, busy >= LEAST_BUSY))
    if all(of.values()):
        ours, theirs = (median(r.best for r in of[name]) for name in ("continuous", "rounds"))
        found.append((f"{at}: best {ours:.2%}, with rounds {theirs:.2%}", ours >= theirs - ALIKE))
    return found


def _each(values: Sequence[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{median(values):.1f} ({' '.join(f'{value:.0f}' for value in values)})"


def _tasks(options: argparse.Namespace) -> Iterator[Task]:
    for slots, schedule in product(options.slots, SCHEDULES):
        seeds = options.seeds if slots == JUDGED_SLOTS else options.seeds[:1]
        for seed in seeds:
            yield Task(schedule, slots, seed, options.time_scale)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--slots", nargs="+", type=int, default=(1, 2, 4, 8, 16))
    parser.add_argument("--seeds", nargs="+", type=int, default=(1, 2, 3, 4, 5))
    parser.add_argument("--time-scale", type=float, default=1.0, help="for a quick look, below 1")
    parser.add_argument("--core", type=int, default=0, help="the one to run on")
    parser.add_argument("--out", type=Path, default=Path("results/scheduling"), help="a folder")
    parser.add_argument("--fresh", action="store_true", help="forget what the folder holds")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

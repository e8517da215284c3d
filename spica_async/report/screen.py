"""Shows a sweep while it runs: a live table on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from textwrap import shorten
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from schemas.goal import OptimizationGoal
from schemas.results import CandidateRecord
from spica_async.evaluate.fleet import FleetView, WorkerView
from spica_async.judge.scoring import Candidate, pareto_front, rank
from spica_async.report.deployment_text import deployment, traffic_handling
from spica_async.report.units import figure, margin, objective, seconds
from spica_async.search.baseline import Baseline
from spica_async.search.branch import Branch
from spica_async.search.observer import Observer
from spica_async.search.result import found_nothing

CONNECTED: Final = "connected"
BLOCKED: Final = "blocked"
_CELL_WIDTH: Final = 100
_NAMED_WORKERS: Final = 8
_SHOWN_TROUBLES: Final = 3


class ProgressConsole(Console):
    """Stderr, whose reader may leave at any time; the sweep goes on without showing itself."""

    def __init__(self) -> None:
        super().__init__(stderr=True)

    def on_broken_pipe(self) -> None:
        """Fall silent, where the base class would end the program."""
        self.quiet = True

    def print_line(self, line: str) -> None:
        """Print a line as it is, however long."""
        self.print(Text(line), soft_wrap=True)


class Display(Observer):
    """Shows a sweep, from the first check of the input to the last candidate.

    Args:
        goal: says which objectives a candidate shows.
        console: where it is shown.
        fleet: show the workers; otherwise only what is wrong with them.
    """

    def __init__(self, goal: OptimizationGoal, console: Console, *, fleet: bool = False) -> None:
        self._goal = goal
        self._console = console
        self._shows_fleet = fleet
        self._began = time.monotonic()

    def note(self, line: str) -> None:
        """Print the line, to stay."""
        self._console.print(Text(line), soft_wrap=True)

    def bus(self, state: str, why: str) -> None:
        """How it stands with the broker: `connecting`, `connected` or `blocked`."""


@contextmanager
def showing(goal: OptimizationGoal, console: Console, *, fleet: bool = False) -> Iterator[Display]:
    """The display that suits the console, while the context is open; see `Display`."""
    if not console.is_terminal:
        yield PlainDisplay(goal, console, fleet=fleet)
        return
    display = LiveDisplay(goal, console, fleet=fleet)
    with Live(get_renderable=display.render, console=console, refresh_per_second=4, transient=True):
        yield display


class PlainDisplay(Display):
    """One line per event, for logs and pipes."""

    def __init__(self, goal: OptimizationGoal, console: Console, *, fleet: bool = False) -> None:
        super().__init__(goal, console, fleet=fleet)
        self._last_planning = ""
        self._last_fleet: list[str] = []
        self._last_state = CONNECTED
        self._ended: set[str] = set()

    def planning(self, line: str) -> None:
        """Print the stage, not each shape of it."""
        stage = line.partition(":")[0]
        if stage != self._last_planning:
            self._last_planning = stage
            self._print(stage)

    def evaluated(self, record: CandidateRecord) -> None:
        """Print the candidate."""
        self._print(candidate_line(record, self._goal))

    def progressed(self, branch: Branch) -> None:
        """Print the end of a branch."""
        if branch.state.finished and branch.space.mode not in self._ended:
            self._ended.add(branch.space.mode)
            self._print(f"{branch.space.mode} {branch.state.phase}: {_counts(branch)}")

    def confirming(self, candidate: Candidate, replays: int) -> None:
        """Print what is known of it by now."""
        self._print(confirming_line(candidate, replays))

    def baseline(self, baseline: Baseline) -> None:
        """Print what is known of it by now."""
        self._print(baseline_line(baseline))

    def fleet(self, view: FleetView) -> None:
        """Print what was not so before; who is busy changes too often for a line each."""
        lines = concerns(view)
        if self._shows_fleet:
            lines = [workers_line(view), *lines]
        for line in lines:
            if line not in self._last_fleet:
                self._print(line)
        self._last_fleet = lines

    def bus(self, state: str, why: str) -> None:
        """Print that it stands otherwise than before."""
        if state != self._last_state:
            self._last_state = state
            self._print(broker_line(state, why))

    def _print(self, line: str) -> None:
        self.note(f"[{seconds(time.monotonic() - self._began)}] {line}")


class LiveDisplay(Display):
    """A table that is drawn anew as things happen."""

    def __init__(self, goal: OptimizationGoal, console: Console, *, fleet: bool = False) -> None:
        super().__init__(goal, console, fleet=fleet)
        self._fleet: FleetView | None = None
        self._bus = CONNECTED, ""
        self._bus_since = 0.0
        self._confirming: str | None = None
        self._baseline: str | None = None
        self._branches: dict[str, Branch] = {}
        self._planning = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), console=console, transient=True
        )
        self._stage = self._planning.add_task("reading the configuration", total=None)

    def planning(self, line: str) -> None:
        """Show the line beside the spinner."""
        self._planning.update(self._stage, description=line)

    def progressed(self, branch: Branch) -> None:
        """Show the branch; the screen follows at its own rate."""
        self._branches[branch.space.mode] = branch

    def confirming(self, candidate: Candidate, replays: int) -> None:
        """Show what is known of it by now."""
        self._confirming = confirming_line(candidate, replays)

    def baseline(self, baseline: Baseline) -> None:
        """Show what is known of it by now."""
        self._baseline = baseline_line(baseline)

    def fleet(self, view: FleetView) -> None:
        """Show the workers; the screen follows at its own rate."""
        self._fleet = view

    def bus(self, state: str, why: str) -> None:
        """Show how it stands with the broker, and for how long it has."""
        if state != self._bus[0]:
            self._bus_since = time.monotonic()
        self._bus = state, why

    def render(self) -> Group:
        """The table, or before there is one the stage of the planning, and what is to be known."""
        above = self._table() if self._branches else self._planning
        return Group(above, *(Text(line, style="dim") for line in self._lines()))

    def _lines(self) -> Iterator[str]:
        if self._baseline is not None:
            yield self._baseline
        if self._confirming is not None:
            yield self._confirming
        if self._fleet is not None:
            if self._shows_fleet:
                yield f"{workers_line(self._fleet)}, busy {self._fleet.busy}"
                if who := who_works(self._fleet.workers):
                    yield f"  {who}"
            yield from concerns(self._fleet)
        if self._bus[0] != CONNECTED:
            yield broker_line(*self._bus, time.monotonic() - self._bus_since)

    def _table(self) -> Table:
        title = f"searching for {seconds(time.monotonic() - self._began)}"
        headings = ("branch", "round", "unique", "in flight", "best so far", "optimizer / replay")
        table = Table(*headings, title=title, expand=True)
        for branch in self._branches.values():
            table.add_row(
                branch.space.mode,
                f"{branch.state.round}/{branch.sweep.max_rounds}",
                _bar(branch),
                str(branch.state.in_flight) if not branch.state.finished else branch.state.phase,
                best_so_far(branch, self._goal),
                f"{seconds(branch.stats.suggest_seconds)} / {seconds(branch.evaluation_seconds)}",
            )
        return table


def candidate_line(record: CandidateRecord, goal: OptimizationGoal) -> str:
    """What a candidate is, and its objectives or what kept it from having any."""
    if record.objectives is None:
        verdict = f"{record.outcome}: {record.cause}: {record.detail}"
    else:
        verdict = ", ".join(
            objective(target, record.objectives[target.value]) for target in goal.objectives
        )
    what = f"{deployment(record.config)}, {traffic_handling(record.config)}"
    return f"{record.branch} round {record.round}: {what}: {verdict}"


def confirming_line(candidate: Candidate, replays: int) -> str:
    """What is known by now of one that is measured again."""
    return f"confirming the best, {replays} replays so far: {known_line(candidate)}"


def baseline_line(baseline: Baseline) -> str:
    """What is known by now of what the candidates are held against, or why nothing is."""
    known = baseline.problem if baseline.candidate is None else known_line(baseline.candidate)
    return f"baseline: {known}"


def known_line(candidate: Candidate) -> str:
    """What is known of a candidate, and over how many replays."""
    means = ", ".join(
        objective(target, mean.value)
        + (f" ± {half}" if mean.interval and (half := margin(*mean.interval)) else "")
        for target, mean in candidate.means.items()
    )
    return f"{deployment(candidate.sample)}: {means} over {candidate.replicates}"


def best_so_far(branch: Branch, goal: OptimizationGoal) -> str:
    """The best candidate of a branch, or the size of its front, or why there is none."""
    if not branch.candidates:
        if not branch.state.causes:
            return "-"
        # The engine's own words may be pages.
        return shorten(f"none: {found_nothing(branch.state)}", _CELL_WIDTH, placeholder=" ...")
    if goal.is_pareto:
        return f"{len(pareto_front(branch.candidates, goal.objectives))} on the front"
    best: Candidate = rank(branch.candidates)[0]
    value = objective(goal.target, best.objectives[goal.target])
    return f"{value}: {deployment(best.sample)}"


def _bar(branch: Branch) -> Group:
    done, target = branch.state.unique_successes, branch.state.target
    bar = Progress(BarColumn(bar_width=12), TextColumn(f"{done}/{target}"))
    bar.add_task("", total=target, completed=done)
    return Group(bar)


def _counts(branch: Branch) -> str:
    counts = {
        "candidates": len(branch.candidates),
        "suggestions": branch.state.attempts,
        "duplicates": branch.state.duplicates,
    }
    return ", ".join(f"{figure(count)} {name}" for name, count in counts.items() if count)


def workers_line(view: FleetView) -> str:
    """How many there are and what they can do: `workers: 3 (1 starting), slots 8`."""
    states = Counter(worker.state for worker in view.workers if worker.state != "ready")
    others = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    return f"workers: {len(view.workers)}{f' ({others})' if others else ''}, slots {view.slots}"


def who_works(workers: Sequence[WorkerView]) -> str:
    """Each worker's busy slots, if there are several: `host-a-17 4/4, host-b-9 1/4`."""
    if len(workers) < 2:
        return ""
    named = [f"{one.name} {one.busy}/{one.slots}" for one in workers[:_NAMED_WORKERS]]
    more = len(workers) - len(named)
    return ", ".join([*named, f"and {more} more"] if more else named)


def concerns(view: FleetView) -> list[str]:
    """What a person may have to do something about, one line each."""
    lines = []
    if view.waiting_for is not None:
        lines.append(f"waiting: {view.waiting_for}")
    elif view.foreign:
        lines.append(
            f"workers with another engine, which take nothing: {view.foreign}"
            f" ({'; '.join(view.differences)})"
        )
    lines += [f"trouble: {trouble}" for trouble in view.troubles[:_SHOWN_TROUBLES]]
    more = len(view.troubles) - _SHOWN_TROUBLES
    return [*lines, f"trouble: and {more} more"] if more > 0 else lines


def broker_line(state: str, why: str, since_seconds: float | None = None) -> str:
    """How it stands with the broker, and for how long if that is known."""
    if state == CONNECTED:
        return "broker: connected"
    since = "" if since_seconds is None else f" since {seconds(since_seconds)}"
    reason = f" ({why})" if why else ""
    if state == BLOCKED:
        return f"broker: does not take messages{since}{reason}; waiting"
    return f"broker: unreachable{since}{reason}; trying again"

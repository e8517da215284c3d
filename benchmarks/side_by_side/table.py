"""What both sides came to, in one table, and whether the goals are met."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from side_by_side.contest import Contest
from side_by_side.outcome import Outcome
from side_by_side.quality import ENOUGH, seconds_to

_WALL_BY_REPLAYS = 1.3
_OPTIMIZER_SHARE = 0.1
_MOST_OTHERS_SHARE = 0.02
_MEGABYTE = 1e6


@dataclass(frozen=True, slots=True)
class Goal:
    """What our side has to reach.

    Attributes:
        wording: the goal, for a person.
        value: of our run.
        met: whether that is enough.
    """

    wording: str
    value: str
    met: bool


def goals(contest: Contest, rival: Outcome, ours: Outcome) -> list[Goal]:
    """The goals of one contest, of one run of ours against one of the rival's."""
    wall = ours.recording.wall_seconds / rival.recording.wall_seconds
    by_replays = ours.wall_without_once / ours.parts.replays
    optimizer = ours.parts.optimizer / ours.wall_without_once
    quality = contest.quality(ours.found) / contest.quality(rival.found)
    reached = [
        Goal(
            f"wall at most {contest.wall_ratio:.3g} of the rival's",
            f"{wall:.3f}",
            wall <= contest.wall_ratio,
        ),
        Goal(
            f"wall without starts and compiling at most {_WALL_BY_REPLAYS} x the replays' CPU",
            f"{by_replays:.2f} x",
            by_replays <= _WALL_BY_REPLAYS,
        ),
        Goal(
            f"optimizer below {_OPTIMIZER_SHARE:.0%} of that",
            f"{optimizer:.1%}",
            optimizer < _OPTIMIZER_SHARE,
        ),
        Goal(
            f"the same best or a better one, with {contest.noise:.1%} of noise",
            f"{quality:.4f} x",
            quality >= 1 - contest.noise,
        ),
        Goal(
            f"no more candidates than the rival's {rival.evaluated}",
            f"{ours.evaluated}",
            ours.evaluated <= rival.evaluated,
        ),
    ]
    if contest.wanted is not None:
        best = contest.best(ours.found).label
        reached.append(Goal(f"best is {contest.wanted}", best, best == contest.wanted))
    return reached


def show(console: Console, contest: Contest, runs: Sequence[tuple[str, Outcome]]) -> None:
    """Print what each of the runs came to."""
    best = max(contest.quality(outcome.found) for _, outcome in runs)
    table = Table(title=f"{contest.name}: one core, {runs[0][1].evaluated} candidates")
    table.add_column("")
    for name, _ in runs:
        table.add_column(name, justify="right")
    for title, tell in _rows(contest, best):
        table.add_row(title, *(tell(outcome) for _, outcome in runs))
    console.print(table)


def show_goals(console: Console, contest: Contest, reached: Sequence[Goal]) -> None:
    """Print which goals are met."""
    table = Table(title=f"{contest.name}: goals")
    for name in ("goal", "measured", "verdict"):
        table.add_column(name)
    for goal in reached:
        verdict = "[green]met[/]" if goal.met else "[red]missed[/]"
        table.add_row(goal.wording, goal.value, verdict)
    console.print(table)


def disturbances(runs: Sequence[tuple[str, Outcome]]) -> list[str]:
    """Runs whose wall time says little, since others used their core."""
    return [
        f"{name}: others used {outcome.recording.others_share:.0%} of the core meanwhile, so that"
        " wall times are not its own"
        for name, outcome in runs
        if outcome.recording.others_share > _MOST_OTHERS_SHARE
    ]


def _rows(contest: Contest, best: float) -> list[tuple[str, Callable[[Outcome], str]]]:
    def part(name: str) -> tuple[str, Callable[[Outcome], str]]:
        return f"  {name}, CPU s", lambda one: f"{getattr(one.parts, name):.1f}"

    def to_best(one: Outcome) -> str:
        seconds = seconds_to(ENOUGH * best, one.found, contest.quality)
        return "never" if seconds is None else f"{seconds:.1f}"

    def quality(one: Outcome) -> str:
        value = contest.quality(one.found)
        return f"{contest.shown(value):,.1f}" if value else "nothing"

    return [
        ("wall s", lambda one: f"{one.recording.wall_seconds:.1f}"),
        (f"wall s to {ENOUGH:.0%} of the better best", to_best),
        (f"best, {contest.unit}", quality),
        ("candidates evaluated", lambda one: f"{one.evaluated}"),
        ("suggestions", lambda one: f"{one.suggestions}"),
        ("slots busy", lambda one: f"{one.busy_share:.0%}"),
        ("peak memory MB", lambda one: f"{_megabytes(one):,.0f}"),
        ("CPU s", lambda one: f"{one.recording.cpu_seconds:.1f}"),
        *map(part, ("starts", "compiling", "planning", "optimizer", "replays", "rest")),
        ("  all but starts and compiling, by replays", lambda one: f"{one.cpu_by_replays:.2f} x"),
        ("core used by others", lambda one: f"{one.recording.others_share:.0%}"),
    ]


def _megabytes(outcome: Outcome) -> float:
    return outcome.recording.sightings.peak_memory_bytes / _MEGABYTE

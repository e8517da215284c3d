"""The sweeps that both sides are asked for."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from schemas.config import Schedule
from side_by_side.quality import Found, Quality, highest, hypervolume, shortest

ROOT = Path(__file__).parents[2]
_SWEEPS = Path(__file__).parent / "sweeps"
_TRACE = "conversation_trace.jsonl"
_TRACE_REQUESTS = 2000
_FEWEST_PER_ROUND = 4
_MOST_PER_ROUND = 8
_ROUNDING = 1e-9


class TraceMissingError(Exception):
    """The folder of real traces does not have the one that a sweep needs."""


@dataclass(frozen=True, slots=True)
class Contest:
    """One sweep.

    Attributes:
        name: also that of its two files in `sweeps/`.
        wall_ratio: our wall time should be at most this much of the rival's.
        objectives: their names in a configuration's goal, in the order of `Found.objectives`.
        quality: of what was found; more is better.
        unit: of `shown`.
        shown: the quality as a person wants to see it.
        noise: two replays of the same candidate may differ by this much, relatively.
        branches: how many deployment modes share the budget.
        needs_trace: whether both sides replay `trace.jsonl`.
        wanted: the deployment that our best has to be, if there is one to name.
    """

    name: str
    wall_ratio: float
    objectives: tuple[str, ...]
    quality: Quality
    unit: str
    shown: Callable[[float], float] = float
    noise: float = _ROUNDING
    branches: int = 1
    needs_trace: bool = False
    wanted: str | None = None

    def prepare(self, side: str, folder: Path) -> dict[str, Any]:
        """Put what the sweep reads into a folder, and return the side's configuration.

        Raises:
            TraceMissingError: if it needs the real trace and that is not there.
        """
        folder.mkdir(parents=True)
        if self.needs_trace:
            _first_requests(folder / "trace.jsonl")
        path = _SWEEPS / f"{self.name}.{side}.yaml"
        configuration: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        return configuration

    def best(self, found: list[Found]) -> Found:
        """The best candidate of one objective."""
        return max(found, key=lambda one: self.quality([one]))


CONTESTS: Final = {
    contest.name: contest
    for contest in (
        Contest(
            "throughput",
            wall_ratio=1 / 8,
            objectives=("throughput_per_gpu",),
            quality=highest,
            unit="tok/s/GPU",
            wanted="vllm agg 1 x tp 1",
        ),
        Contest(
            "pareto",
            wall_ratio=1 / 6,
            objectives=("throughput_per_gpu", "throughput_per_user"),
            quality=hypervolume,
            unit="tok/s/GPU x tok/s/user",
            branches=2,
        ),
        Contest(
            "router",
            wall_ratio=0.35,
            objectives=("e2e_latency",),
            quality=shortest,
            unit="ms",
            shown=lambda quality: 1 / quality,
            noise=0.005,
            needs_trace=True,
        ),
    )
}


def rounds_for(budget: int, schedule: Schedule) -> tuple[int, int]:
    """Rounds and candidates per round that make up a budget, or as much of it as rounds can.

    Rounds are barriers of four to eight candidates, two rounds at least where that is possible: the
    second one learns from the first. Without barriers the budget is one round.
    """
    if schedule == "continuous" or budget < _FEWEST_PER_ROUND:
        return 1, budget
    per_round = max(
        range(_FEWEST_PER_ROUND, _MOST_PER_ROUND + 1),
        key=lambda size: (budget // size * size, budget // size > 1, size),
    )
    return budget // per_round, per_round


def _first_requests(path: Path) -> None:
    traces = Path(os.environ.get("SPICA_TRACES", ROOT.parent / "shared" / "traces"))
    if not (traces / _TRACE).exists():
        raise TraceMissingError(f"{traces / _TRACE} is not there: set SPICA_TRACES")
    with (traces / _TRACE).open("rb") as source, path.open("wb") as target:
        target.writelines(itertools.islice(source, _TRACE_REQUESTS))

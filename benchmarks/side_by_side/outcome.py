"""What a run of either side came to, in the same terms."""

from __future__ import annotations

from dataclasses import dataclass

from side_by_side.quality import Found
from side_by_side.recording import Recording


@dataclass(frozen=True, slots=True)
class Parts:
    """Where the CPU time of a run went, in seconds.

    Attributes:
        starts: of processes, until they take their first work: interpreter and imports.
        compiling: tracing, lowering and compiling of the optimizer's programs.
        planning: what is done before the search beside that.
        optimizer: suggestions.
        replays: of the candidates, set-up included.
        rest: whatever else.
    """

    starts: float
    compiling: float
    planning: float
    optimizer: float
    replays: float
    rest: float

    @property
    def once(self) -> float:
        """What every process pays once, however long the search is."""
        return self.starts + self.compiling


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run.

    Attributes:
        recording: what was seen of it from outside.
        found: its feasible candidates, in the order in which they were measured.
        evaluated: candidates that were replayed, each counted once.
        suggestions: candidates that its optimizer proposed.
        busy_share: of the search's time, what the evaluation slots spent on candidates.
        parts: where the CPU time went.
    """

    recording: Recording
    found: list[Found]
    evaluated: int
    suggestions: int
    busy_share: float
    parts: Parts

    @property
    def wall_without_once(self) -> float:
        """Wall seconds without what processes pay once; on one core that is in nobody's shadow."""
        return self.recording.wall_seconds - self.parts.once

    @property
    def cpu_by_replays(self) -> float:
        """CPU seconds without what processes pay once, for each of the replays' own."""
        return (self.recording.cpu_seconds - self.parts.once) / self.parts.replays

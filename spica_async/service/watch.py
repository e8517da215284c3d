"""The progress of a sweep that this daemon runs, for its answers."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from schemas.daemon import BranchProgress
from schemas.goal import OptimizationGoal
from schemas.results import CandidateRecord, RankedCandidate, Tally
from spica_async.evaluate.fleet import FleetView
from spica_async.judge.ranking import entry_of, ranking
from spica_async.judge.scoring import Candidate
from spica_async.judge.sweep_result import sum_tallies
from spica_async.search.baseline import Baseline
from spica_async.search.branch import Branch
from spica_async.search.observer import Observer
from spica_async.search.result import branch_result


class SweepWatch(Observer):
    """Keeps the candidates and branches of a running sweep, for the answers of the daemon.

    Args:
        sweep_id: the name of the sweep.
        on_fleet: called with every new view of the workers.

    Attributes:
        records: every candidate with a verdict, in order.
    """

    def __init__(self, sweep_id: str, on_fleet: Callable[[FleetView], None]) -> None:
        self.records: list[CandidateRecord] = []
        self._on_fleet = on_fleet
        self._branches: dict[str, Branch] = {}
        self._baseline: Baseline | None = None
        self._last_found = 0.0, time.monotonic()
        self._log = structlog.get_logger(__name__).bind(sweep=sweep_id)

    def note(self, line: str) -> None:
        """Log it, for nobody watches the daemon."""
        self._log.info("sweep.note", note=line)

    def restored(self, record: CandidateRecord) -> None:
        """Keep what an earlier run has found."""
        self._keep(record)

    def evaluated(self, record: CandidateRecord) -> None:
        """Keep what is found."""
        self._keep(record)
        self._log.info("sweep.candidate", candidate=record.candidate_id, outcome=record.outcome)

    def _keep(self, record: CandidateRecord) -> None:
        self.records.append(record)
        self._last_found = record.found_seconds, time.monotonic()

    def progressed(self, branch: Branch) -> None:
        """Keep where it stands."""
        self._branches[branch.space.mode] = branch

    def baseline(self, baseline: Baseline) -> None:
        """Keep it, for what is known of it by now."""
        self._baseline = baseline

    def fleet(self, view: FleetView) -> None:
        """Pass on what there is of workers."""
        self._on_fleet(view)

    @property
    def elapsed_seconds(self) -> float:
        """How long the sweep has run for, about: from when its last candidate was found."""
        found, heard = self._last_found
        return found + time.monotonic() - heard

    @property
    def progress(self) -> list[BranchProgress]:
        """How far each branch is."""
        return [
            BranchProgress(
                branch=mode,
                phase=branch.state.phase,
                round=branch.state.round,
                found=branch.state.unique_successes,
                target=branch.state.target,
                attempts=branch.state.attempts,
                in_flight=branch.state.in_flight,
            )
            for mode, branch in self._branches.items()
        ]

    @property
    def tally(self) -> Tally:
        """The suggestions of all branches by what became of them."""
        return sum_tallies(branch_result(branch).tally for branch in self._branches.values())

    def best(self, goal: OptimizationGoal, *, most: int) -> list[RankedCandidate]:
        """So many of the ranking at most, or the whole front under a Pareto goal."""
        found = [c for branch in self._branches.values() for c in branch.candidates]
        return ranking(found, goal, most=most, baseline=self._baseline_candidate)

    def baseline_entry(self, goal: OptimizationGoal) -> RankedCandidate | None:
        """What they are held against, once it is measured."""
        known = self._baseline_candidate
        return None if known is None else entry_of(known, goal)

    @property
    def _baseline_candidate(self) -> Candidate | None:
        return None if self._baseline is None else self._baseline.candidate

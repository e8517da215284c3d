"""The observers of a sweep: its results folder, the screen or the daemon, its events."""

from __future__ import annotations

from schemas.journal import SweepFact
from schemas.results import CandidateRecord, SweepResult
from spica_async.evaluate.fleet import FleetView
from spica_async.judge.scoring import Candidate
from spica_async.search.baseline import Baseline
from spica_async.search.branch import Branch


class Observer:
    """Is called at each step of a sweep, from planning to result; does nothing by itself."""

    def planning(self, line: str) -> None:
        """Something is being done before the search."""

    def note(self, line: str) -> None:
        """The user should know this of the sweep."""

    def restoring(self, fact: SweepFact) -> None:
        """A fact of an earlier run is about to have its effect once more."""

    def restored(self, record: CandidateRecord) -> None:
        """A unique sample had its verdict in an earlier run."""

    def resumed(self) -> None:
        """All that earlier runs have found was restored."""

    def evaluated(self, record: CandidateRecord) -> None:
        """A unique sample has its verdict."""

    def progressed(self, branch: Branch) -> None:
        """Something of the branch has changed."""

    def confirming(self, candidate: Candidate, replays: int) -> None:
        """One of the best was measured once more; `replays` is how often any was."""

    def baseline(self, baseline: Baseline) -> None:
        """The baseline was measured, or once more."""

    def captured(self, candidate_id: str, artifact: str) -> None:
        """A candidate or the baseline has its artifact, now or in an earlier run.

        Args:
            candidate_id: the name of it.
            artifact: as in `Measurement`.
        """

    def fleet(self, view: FleetView) -> None:
        """Something of the workers has changed."""

    def ended(self, result: SweepResult, *, pareto: bool) -> None:
        """A run has ended; with `pareto` the ranking in its result is a front."""

    async def settled(self) -> None:
        """Wait until everything observed so far is written."""


class Observers(Observer):
    """Several observers, called in their order."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers
        self._is_restoring = True

    def restoring(self, fact: SweepFact) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.restoring(fact)

    def resumed(self) -> None:
        """Pass it on; what is evaluated from now on is new."""
        self._is_restoring = False
        for observer in self._observers:
            observer.resumed()

    def evaluated(self, record: CandidateRecord) -> None:
        """Pass it on as new, or as restored."""
        for observer in self._observers:
            (observer.restored if self._is_restoring else observer.evaluated)(record)

    def progressed(self, branch: Branch) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.progressed(branch)

    def confirming(self, candidate: Candidate, replays: int) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.confirming(candidate, replays)

    def baseline(self, baseline: Baseline) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.baseline(baseline)

    def captured(self, candidate_id: str, artifact: str) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.captured(candidate_id, artifact)

    def fleet(self, view: FleetView) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.fleet(view)

    def ended(self, result: SweepResult, *, pareto: bool) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.ended(result, pareto=pareto)

    async def settled(self) -> None:
        """Wait for each."""
        for observer in self._observers:
            await observer.settled()

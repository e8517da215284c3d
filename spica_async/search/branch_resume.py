"""Brings a branch back to where an earlier run of its sweep has left it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from schemas.journal import BranchFact, Concluded, Measured, Observed, Requested, Suggested
from spica_async.errors import SpicaError
from spica_async.optimizer.proposals import Past, PastObserved, PastProposals, Proposal, proposal_of
from spica_async.search.branch import Branch
from spica_async.search.schedule.state import Observation


@dataclass(frozen=True, slots=True)
class CatchUp:
    """What a branch has to do before it goes on.

    Attributes:
        past: what its proposer has to know.
        unobserved: suggestions whose verdicts the proposer has yet to observe.
        duplicates: proposals of known samples, in place of which others were being looked for.
    """

    past: Past = ()
    unobserved: Sequence[Observation] = ()
    duplicates: Sequence[Proposal] = ()


@dataclass(slots=True)
class BranchRestorer:
    """Applies the facts of one branch in their order, to a branch that has not begun."""

    branch: Branch
    _past: list[PastProposals | PastObserved] = field(default_factory=list)
    _unobserved: dict[int, Observation] = field(default_factory=dict)
    _duplicates: Sequence[Proposal] = ()

    def apply(self, fact: BranchFact) -> None:
        """Apply the next fact.

        Raises:
            SpicaError: it does not go with the plan, or with the facts before it.
        """
        try:
            self._apply(fact)
        except (ValueError, KeyError) as error:
            raise SpicaError(
                f"branch {self.branch.space.mode}: what the journal has as {fact.kind!r} does not"
                f" go with what comes before it: {error}"
            ) from error

    def give_up_requests(self) -> None:
        """Nothing that was sent out so far is under way any more."""
        for evaluation in self.branch.open.values():
            evaluation.requested = False

    def catch_up(self) -> CatchUp:
        """What is left to do after all facts."""
        return CatchUp(self._past, tuple(self._unobserved.values()), self._duplicates)

    def _apply(self, fact: BranchFact) -> None:
        match fact:
            case Suggested():
                self._suggested(fact)
            case Requested():
                self.branch.open[fact.number].requested = True
            case Measured():
                self._observe_later(self.branch.measured(fact))
            case Observed():
                observations = [self._unobserved.pop(number) for number in fact.numbers]
                self._past.append(PastObserved(self.branch.observed(observations)))
            case Concluded():
                self._observe_later(self.branch.concluded(fact.by))
            case _:
                assert_never(fact)

    def _suggested(self, fact: Suggested) -> None:
        suggestions = [
            self.branch.sampled(proposal_of(self.branch.space, proposed))
            for proposed in fact.proposals
        ]
        for proposed, sampled in zip(fact.proposals, suggestions, strict=True):
            if proposed.sample != sampled.digest:
                raise ValueError(f"suggestion {proposed.number} means another sample by now")
        self._past.append(PastProposals([one.proposal for one in suggestions]))
        self.branch.stats = fact.costs
        taken = self.branch.suggested(fact, suggestions)
        self._observe_later(taken.observations)
        self._duplicates = () if fact.instead else taken.duplicates

    def _observe_later(self, observations: Sequence[Observation]) -> None:
        self._unobserved |= {one.number: one for one in observations}

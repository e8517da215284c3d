"""Drives one branch of a sweep: proposals out, measurements in, until it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from schemas.journal import Concluded, Measured, Observed, Requested, Suggested
from schemas.messages import EvaluationRequest, EvaluationResult
from spica_async.evaluate.in_flight import EvaluationGivenUpError, Evaluations
from spica_async.evaluate.reuse import Reuse, Reused, no_reuse
from spica_async.optimizer.proposals import Proposal, Proposer
from spica_async.search.branch import Branch
from spica_async.search.branch_resume import CatchUp
from spica_async.search.evaluation import Evaluation
from spica_async.search.fact_log import FactLog
from spica_async.search.past_runs import MEMORY_BUS, requests_survive
from spica_async.search.schedule.continuous import ContinuousState
from spica_async.search.schedule.state import Observation
from spica_async.search.sweep import Sweep
from spica_async.space.branch import Selection


@dataclass(frozen=True)
class SearchContext:
    """What all branches of a sweep are searched with.

    Attributes:
        sweep: what is searched.
        log: the log that facts are written to.
        elapsed: the seconds that the sweep has run for.
        reuse: answers what was measured before.
        bus: the name of the bus that requests go out on.
    """

    sweep: Sweep
    log: FactLog
    elapsed: Callable[[], float]
    reuse: Reuse = field(default_factory=no_reuse)
    bus: str = MEMORY_BUS

    async def note_request(self, fact: Requested) -> None:
        """Have it written that a request is about to be sent."""
        if requests_survive(self.bus, self.bus):
            await self.log.record(fact, lambda: None)
        else:
            # What is under way ends with this process: no later run looks for it.
            self.log.note(fact)

    async def find(self, request: EvaluationRequest) -> Reused | None:
        """What was measured before in answer to a request; one measurement without replicates."""
        found = await self.reuse.find(request)
        if found is None or self.sweep.replicates:
            return found
        return replace(found, others=())


class BranchDriver:
    """Carries out what one branch decides.

    Whatever changes the branch is written to the log first, and applied to it then.

    Args:
        branch: decides.
        context: what it is searched with.
        progressed: called when something of the branch has changed.
        after_observed: awaited when the proposer has observed candidates.
    """

    # `run` sets these, and everything else happens within it.
    _proposer: Proposer
    _evaluations: Evaluations
    _group: asyncio.TaskGroup

    def __init__(
        self,
        branch: Branch,
        context: SearchContext,
        *,
        progressed: Callable[[], None],
        after_observed: Callable[[], Awaitable[None]],
    ) -> None:
        self.branch = branch
        self._mode = branch.space.mode
        self._context = context
        self._log = context.log
        self._elapsed = context.elapsed
        self._progressed = progressed
        self._after_observed = after_observed
        self._to_observe: asyncio.Queue[Sequence[Observation]] = asyncio.Queue()
        self._evaluating: set[asyncio.Task[None]] = set()
        self._stopped = False

    async def run(self, proposer: Proposer, evaluations: Evaluations, catch_up: CatchUp) -> None:
        """Search until the branch's state is final.

        Args:
            proposer: makes its proposals.
            evaluations: carries the requests of the sweep.
            catch_up: what an earlier run of the sweep has left to do.
        """
        state = self.branch.state
        proposer.stats.add(self.branch.stats)
        self.branch.stats = proposer.stats
        self._proposer, self._evaluations = proposer, evaluations
        async with asyncio.TaskGroup() as self._group:
            await self._catch_up(catch_up)
            # The last replays may end while the proposer still observes duplicates.
            while not (state.finished and self._to_observe.empty()):
                # What has been measured is observed before anything more is asked for.
                if state.wanted and self._to_observe.empty() and not self._stopped:
                    await self._propose()
                else:
                    await self._observe(await self._to_observe.get())
                self._progressed()

    def stop(self) -> frozenset[asyncio.Task[None]]:
        """Propose nothing more. See `Search.stop`."""
        self._stopped = True
        return frozenset(self._evaluating)

    async def conclude(self, by: Literal["branch", "sweep"]) -> None:
        """Propose nothing more, and end when nothing is in flight."""
        fact = Concluded(at=self._elapsed(), branch=self._mode, by=by)
        self._to_observe.put_nowait(
            await self._log.record(fact, partial(self.branch.concluded, by))
        )

    def keep_in_flight(self, parallel: int) -> None:
        """Keep so many samples in flight, where the schedule does not wait for whole rounds."""
        state = self.branch.state
        if isinstance(state, ContinuousState):
            state.keep_in_flight(parallel)
            self._to_observe.put_nowait([])

    async def _catch_up(self, catch_up: CatchUp) -> None:
        await self._proposer.restore(catch_up.past)
        for evaluation in self.branch.open.values():
            self._start(evaluation)
        await self._observe(catch_up.unobserved)
        # What was lost may have been the conclusion from what was observed before.
        await self._conclude_if_lost()
        await self._after_observed()
        await self._replace(catch_up.duplicates)

    async def _propose(self) -> None:
        proposals = await self._proposer.propose(self.branch.state.wanted)
        await self._replace(await self._take(proposals, instead=False))

    async def _replace(self, duplicates: Sequence[Proposal]) -> None:
        """Evaluate something else in place of duplicates, where anything is found."""
        wanted = self.branch.state.wanted
        if duplicates and wanted and not self._stopped:
            claimed: set[str | None] = {None}

            def claim(selection: Selection) -> bool:
                """Whether a selection is new to the branch, and was not claimed before."""
                key = self.branch.is_new(selection)
                is_free = key not in claimed
                claimed.add(key)
                return is_free

            found = await self._proposer.instead_of(duplicates[:wanted], claim)
            await self._take(found, instead=True)

    async def _take(self, proposals: Sequence[Proposal], *, instead: bool) -> Sequence[Proposal]:
        """Send out what is new, observe what is known.

        Returns:
            The duplicates to find something else for.
        """
        if not proposals or self._stopped:
            return []
        suggestions = [self.branch.sampled(proposal) for proposal in proposals]
        fact = Suggested(
            at=self._elapsed(),
            branch=self._mode,
            proposals=[one.as_proposed for one in suggestions],
            instead=instead,
            costs=replace(self.branch.stats),
        )
        taken = await self._log.record(fact, partial(self.branch.suggested, fact, suggestions))
        for evaluation in taken.new:
            self._start(evaluation)
        await self._observe(taken.observations)
        return taken.duplicates

    def _start(self, evaluation: Evaluation) -> None:
        task = self._group.create_task(self._evaluate(evaluation))
        self._evaluating.add(task)
        task.add_done_callback(self._evaluating.discard)

    async def _evaluate(self, evaluation: Evaluation) -> None:
        """Have a sample measured, more than once where that is needed to judge it."""
        number = evaluation.sampled.proposal.number
        with suppress(EvaluationGivenUpError):  # The search is about to end without a verdict.
            while number in self.branch.open:
                await self._measure(evaluation)

    async def _measure(self, evaluation: Evaluation) -> None:
        number, replicate = evaluation.sampled.proposal.number, len(evaluation.measurements)
        request = self._context.sweep.request(
            evaluation.request_id, evaluation.sampled.resolved.sample, replicate=replicate
        )

        async def on_request() -> None:
            fact = Requested(
                at=self._elapsed(), branch=self._mode, number=number, replicate=replicate
            )
            await self._context.note_request(fact)

        async def on_result(result: EvaluationResult, known: Reused | None = None) -> None:
            now = self._elapsed()
            fact = Measured(
                at=now,
                branch=self._mode,
                number=number,
                result=result,
                waited_seconds=max(0.0, now - evaluation.suggested_at - result.wall_seconds),
                reused=known and known.measured,
                replicate=replicate,
                others=list(known.others) if known is not None else [],
            )
            observations = await self._log.record(
                fact,
                partial(self.branch.measured, fact),
                verdict=partial(self.branch.verdict, fact),
            )
            self._progressed()
            if observations:
                self._to_observe.put_nowait(observations)

        # All that the cache has of a sample answers its first request.
        known = None
        if not replicate and not evaluation.requested:
            known = await self._context.find(request)
        if known is not None:
            await on_result(known.result, known)
            return
        result = await self._evaluations.evaluate(
            request, on_request=on_request, on_result=on_result
        )
        await self._context.reuse.keep(request, result)

    async def _observe(self, observations: Sequence[Observation]) -> None:
        if not observations:
            return
        numbers = [one.number for one in observations]
        fact = Observed(at=self._elapsed(), branch=self._mode, numbers=numbers)
        # Were this lost, the proposer would observe the same once more.
        verdicts = self.branch.observed(observations)
        self._log.note(fact)
        await self._proposer.observe(verdicts)
        await self._conclude_if_lost()
        await self._after_observed()

    async def _conclude_if_lost(self) -> None:
        if self.branch.should_conclude:
            await self.conclude("branch")

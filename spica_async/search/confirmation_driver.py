"""Drives the confirmation of a sweep: replays out, measurements in, until the best are known."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from schemas.journal import BranchFact, Confirmed, Measured, Requested
from schemas.messages import EvaluationResult
from spica_async.evaluate.in_flight import EvaluationGivenUpError, Evaluations
from spica_async.evaluate.reuse import Reused
from spica_async.judge.ranking import ranking
from spica_async.judge.scoring import Candidate
from spica_async.search.branch import Branch
from spica_async.search.branch_driver import SearchContext
from spica_async.search.confirmation import Confirmation, Replay
from spica_async.search.evaluation import replicate_id
from spica_async.search.observer import Observer


class ConfirmationDriver:
    """Carries out what the confirmation decides.

    Args:
        confirmation: decides.
        branches: of the sweep, which have the candidates.
        context: what they are searched with.
        observer: called at each step.

    Attributes:
        requested: the names of requests that an earlier run has sent, and that may be under way.
    """

    def __init__(
        self,
        confirmation: Confirmation,
        branches: Sequence[Branch],
        context: SearchContext,
        *,
        observer: Observer,
    ) -> None:
        self.requested: set[str] = set()
        self._confirmation = confirmation
        self._branches: dict[str, Branch] = {branch.space.mode: branch for branch in branches}
        self._context = context
        self._observer = observer
        self._ended = asyncio.Event()
        self._evaluating: set[asyncio.Task[None]] = set()
        self._stopped = False

    def restores(self, fact: BranchFact) -> bool:
        """Take a fact of an earlier run, if it is one of the confirmation."""
        if not isinstance(fact, Requested | Measured):
            return False
        branch = self._branches[fact.branch]
        if fact.number in branch.open:
            return False
        candidate = branch.candidate(fact.number)
        if candidate is None:
            return False
        replay = Replay(candidate.candidate_id, fact.replicate, fact.load)
        if isinstance(fact, Requested):
            self.requested.add(_request_id(replay))
        else:
            self.requested.discard(_request_id(replay))
            self._measured(fact, replay)
        return True

    def stop(self) -> frozenset[asyncio.Task[None]]:
        """Start nothing more. See `Branches.stop`."""
        self._stopped = True
        self._ended.set()
        return frozenset(self._evaluating)

    async def run(self, evaluations: Evaluations) -> None:
        """Measure again until nothing more is wanted, and write down what is confirmed by then."""
        if self._confirmation.is_over(self._candidates):
            return
        async with asyncio.TaskGroup() as group:
            while not self._stopped:
                replay = self._confirmation.next_replay(self._candidates)
                if replay is not None:
                    self._confirmation.started(replay)
                    task = group.create_task(self._measure(replay, evaluations))
                    self._evaluating.add(task)
                    task.add_done_callback(self._evaluating.discard)
                elif self._confirmation.is_over(self._candidates):
                    break
                else:
                    self._ended.clear()
                    await self._ended.wait()
        if self._confirmation.is_over(self._candidates):
            config = self._context.sweep.plan.config
            ranked = ranking(self._candidates, config.goal, confirmed=config.confirm.top)
            confirmed = [one for one in ranked if one.replicates > 1 or one.loads]
            fact = Confirmed(at=self._context.elapsed(), candidates=confirmed)
            await self._context.log.record(fact, lambda: None)

    @property
    def _candidates(self) -> list[Candidate]:
        return [one for branch in self._branches.values() for one in branch.candidates]

    async def _measure(self, replay: Replay, evaluations: Evaluations) -> None:
        candidate = next(one for one in self._candidates if one.candidate_id == replay.candidate_id)
        context, branch = self._context, self._branches[candidate.branch]
        request = context.sweep.request(
            _request_id(replay), candidate.sample, replicate=replay.replicate, load=replay.load
        )
        asked_at = context.elapsed()

        async def on_request() -> None:
            await context.note_request(
                Requested(
                    at=context.elapsed(),
                    branch=candidate.branch,
                    number=candidate.number,
                    replicate=replay.replicate,
                    load=replay.load,
                )
            )

        async def on_result(result: EvaluationResult, known: Reused | None = None) -> None:
            now = context.elapsed()
            fact = Measured(
                at=now,
                branch=candidate.branch,
                number=candidate.number,
                result=result,
                waited_seconds=max(0.0, now - asked_at - result.wall_seconds),
                reused=known and known.measured,
                replicate=replay.replicate,
                load=replay.load,
            )
            await context.log.record(fact, partial(self._measured, fact, replay))
            again = branch.candidate(candidate.number)
            self._observer.confirming(again or candidate, self._confirmation.replays)
            self._observer.progressed(branch)
            self._ended.set()

        # The candidate has all that the cache knew of it under the workload's own load.
        known = None
        if replay.load != 1.0 and request.evaluation_id not in self.requested:
            known = await context.find(request)
        if known is not None:
            await on_result(known.result, known)
            return
        try:
            result = await evaluations.evaluate(request, on_request=on_request, on_result=on_result)
        except EvaluationGivenUpError:
            return  # The confirmation is about to be broken off.
        await context.reuse.keep(request, result)

    def _measured(self, fact: Measured, replay: Replay) -> None:
        is_sound = self._branches[fact.branch].measured_again(fact)
        self._confirmation.ended(replay, sound=is_sound)


def _request_id(replay: Replay) -> str:
    return replicate_id(replay.candidate_id, replay.replicate, replay.load)

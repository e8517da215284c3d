"""Drives the confirmation of a sweep: replays out, measurements in, until the best are known."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from schemas.journal import BranchFact, Confirmed, Measured, Requested
from schemas.messages import EvaluationResult, Sample
from spica_async.evaluate.in_flight import EvaluationGivenUpError, Evaluations
from spica_async.evaluate.reuse import Reused
from spica_async.judge.ranking import ranking
from spica_async.judge.scoring import Candidate
from spica_async.search.baseline import BASELINE, Baseline
from spica_async.search.branch import Branch
from spica_async.search.branch_driver import SearchContext
from spica_async.search.confirmation import Confirmation, Replay
from spica_async.search.evaluation import replicate_id
from spica_async.search.observer import Observer

_SAMPLES: Final = 400
"""Of a replay; a chart shows no more."""
_UNKNOWN_INTERVAL_MS: Final = 1000.0
"""Between samples of a replay whose length nobody knows."""


class ConfirmationDriver:
    """Carries out what the confirmation decides, and has the baseline measured before that.

    Args:
        confirmation: decides.
        branches: of the sweep, which have the candidates.
        context: what they are searched with.
        observer: called at each step.
        baseline: what the candidates are held against; none: nothing.

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
        baseline: Baseline | None = None,
    ) -> None:
        self.requested: set[str] = set()
        self._confirmation = confirmation
        self._branches: dict[str, Branch] = {branch.space.mode: branch for branch in branches}
        self._baseline = baseline
        self._context = context
        self._observer = observer
        self._ended = asyncio.Event()
        self._evaluating: set[asyncio.Task[None]] = set()
        self._capturing: dict[str, Replay] = {}
        self._stopped = False

    def is_over(self) -> bool:
        """Whether the baseline is known, and nothing is left to be measured again."""
        known = self._baseline is None or self._baseline.is_known
        return known and self._confirmation.is_over(self._candidates, self._baseline_candidate)

    def restores(self, fact: BranchFact) -> bool:
        """Take a fact of an earlier run, if it is one of the confirmation or the baseline."""
        if not isinstance(fact, Requested | Measured):
            return False
        if self._baseline is not None and fact.branch == BASELINE:
            replay = Replay(self._baseline.evaluation_id, fact.replicate, fact.load)
        else:
            branch = self._branches.get(fact.branch)
            if branch is None or fact.number in branch.open:
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

    def start_baseline(self, group: asyncio.TaskGroup, evaluations: Evaluations) -> None:
        """Have the baseline measured, if that was not done before."""
        if self._baseline is not None and not self._baseline.is_known:
            replay = Replay(self._baseline.evaluation_id, 0)
            self._start(group, replay, evaluations)

    async def run(self, evaluations: Evaluations) -> None:
        """Measure again until nothing more is wanted, and write down what is confirmed by then."""
        if self.is_over():
            return
        async with asyncio.TaskGroup() as group:
            while not self._stopped:
                replay = self._confirmation.next_replay(self._candidates, self._baseline_candidate)
                if replay is not None:
                    self._confirmation.started(replay)
                    self._start(group, replay, evaluations)
                elif self.is_over():
                    break
                else:
                    self._ended.clear()
                    await self._ended.wait()
        if self.is_over():
            config, baseline = self._context.sweep.plan.config, self._baseline_candidate
            ranked = ranking(
                self._candidates, config.goal, confirmed=config.confirm.top, baseline=baseline
            )
            confirmed = [one for one in ranked if one.replicates > 1 or one.loads]
            fact = Confirmed(at=self._context.elapsed(), candidates=confirmed)
            await self._context.log.record(fact, lambda: None)

    @property
    def _candidates(self) -> list[Candidate]:
        return [one for branch in self._branches.values() for one in branch.candidates]

    @property
    def _baseline_candidate(self) -> Candidate | None:
        return None if self._baseline is None else self._baseline.candidate

    def _start(self, group: asyncio.TaskGroup, replay: Replay, evaluations: Evaluations) -> None:
        task = group.create_task(self._measure(replay, evaluations))
        self._evaluating.add(task)
        task.add_done_callback(self._evaluating.discard)

    def _subject(self, replay: Replay) -> tuple[str, int, Sample]:
        """The branch, the number and the sample of what is replayed."""
        if self._baseline is not None and replay.candidate_id == self._baseline.evaluation_id:
            return BASELINE, 0, self._baseline.sample
        one = next(one for one in self._candidates if one.candidate_id == replay.candidate_id)
        return one.branch, one.number, one.sample

    def _candidate(self, name: str) -> Candidate | None:
        """What is known of a candidate or of the baseline, if anything."""
        known = (*self._candidates, self._baseline_candidate)
        return next((one for one in known if one is not None and one.candidate_id == name), None)

    def _capture_interval_ms(self, replay: Replay) -> float | None:
        """How often to sample a replay for its artifact; None: it is to leave none.

        Of each candidate one replay at a time is to, until one has.
        """
        name = replay.candidate_id
        candidate = self._candidate(name)
        has_artifact = candidate is not None and candidate.has_artifact
        if replay.load != 1.0 or name in self._capturing or has_artifact:
            return None
        self._capturing[name] = replay
        duration_ms = 0.0 if candidate is None else candidate.report.get("duration_ms", 0.0)
        return max(1.0, duration_ms / _SAMPLES) if duration_ms else _UNKNOWN_INTERVAL_MS

    async def _measure(self, replay: Replay, evaluations: Evaluations) -> None:
        context = self._context
        branch, number, sample = self._subject(replay)
        request = context.sweep.request(
            _request_id(replay),
            sample,
            replicate=replay.replicate,
            load=replay.load,
            capture_interval_ms=self._capture_interval_ms(replay),
        )
        asked_at = context.elapsed()

        async def on_request() -> None:
            await context.note_request(
                Requested(
                    at=context.elapsed(),
                    branch=branch,
                    number=number,
                    replicate=replay.replicate,
                    load=replay.load,
                )
            )

        async def on_result(result: EvaluationResult, known: Reused | None = None) -> None:
            now = context.elapsed()
            fact = Measured(
                at=now,
                branch=branch,
                number=number,
                result=result,
                waited_seconds=max(0.0, now - asked_at - result.wall_seconds),
                reused=known and known.measured,
                replicate=replay.replicate,
                others=list(known.others) if known is not None and replay.load == 1.0 else [],
                load=replay.load,
            )
            await context.log.record(fact, partial(self._measured, fact, replay))
            self._show(branch, number)
            self._ended.set()

        # A candidate has all that the cache knew of it under the workload's own load.
        is_first = not replay.replicate
        known = None
        if is_first and request.evaluation_id not in self.requested:
            known = await context.find(request)
        if known is not None:
            await on_result(known.result, known)
            return
        try:
            result = await evaluations.evaluate(request, on_request=on_request, on_result=on_result)
        except EvaluationGivenUpError:
            return  # The sweep is about to be broken off.
        await context.reuse.keep(request, result)

    def _show(self, branch: str, number: int) -> None:
        """Let the observer know what has come of a replay."""
        replays = self._confirmation.replays
        if branch == BASELINE:
            assert self._baseline is not None  # noqa: S101  # it was just measured
            self._observer.baseline(self._baseline)
            return
        candidate = self._branches[branch].candidate(number)
        assert candidate is not None  # noqa: S101  # likewise
        self._observer.confirming(candidate, replays)
        self._observer.progressed(self._branches[branch])

    def _measured(self, fact: Measured, replay: Replay) -> None:
        had = self._candidate(replay.candidate_id)
        self._apply(fact, replay)
        has = self._candidate(replay.candidate_id)
        artifact = fact.result.measurement.artifact
        if self._capturing.get(replay.candidate_id) == replay:
            # If it has left none, the next is to try: its worker may be a newer one.
            del self._capturing[replay.candidate_id]
        if (
            artifact is not None
            and has is not None
            and has.has_artifact
            and not (had and had.has_artifact)
        ):
            self._observer.captured(replay.candidate_id, artifact)

    def _apply(self, fact: Measured, replay: Replay) -> None:
        if fact.branch != BASELINE:
            is_sound = self._branches[fact.branch].measured_again(fact)
        else:
            assert self._baseline is not None  # noqa: S101  # nobody else has asked for it
            is_first = not self._baseline.is_known
            is_sound = self._baseline.measured(fact)
            if is_first:
                return  # It is no replay of the confirmation.
        self._confirmation.ended(replay, sound=is_sound)


def _request_id(replay: Replay) -> str:
    return replicate_id(replay.candidate_id, replay.replicate, replay.load)

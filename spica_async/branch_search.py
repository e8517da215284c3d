"""Drives one branch of a sweep: proposals out, measurements in, until it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from schemas.config import SmartSearchConfig, SweepControl
from schemas.messages import EvaluationRequest, EvaluationResult, TraceLoad
from schemas.results import CandidateRecord, CandidateTimings
from spica_async.branch import (
    BranchState,
    ContinuousState,
    Disposition,
    RoundsState,
    Tell,
    batch_for,
)
from spica_async.evaluations import EvaluationGivenUpError, Evaluations
from spica_async.fleet import FleetView
from spica_async.judging import Judged, judge, metrics_for_sampler, refuse
from spica_async.loads import load_of
from spica_async.plan.budget import enumerable_points
from spica_async.proposals import Proposal, Proposer
from spica_async.sample import (
    ResolvedSample,
    SampleContext,
    resolve_kv_load,
    sample_key,
    unroll_sample,
)
from spica_async.sampling.port import SamplerStats
from spica_async.scoring import Candidate
from spica_async.space.branch import BranchSpace, Selection
from spica_async.stagnation import Stagnation


class Observer(Protocol):
    """Hears of what happens in a sweep, as it happens."""

    def evaluated(self, record: CandidateRecord) -> None:
        """A unique sample has its verdict."""

    def progressed(self, branch: BranchSearch) -> None:
        """Something of the branch has changed."""

    def fleet(self, view: FleetView) -> None:
        """Something of the workers has changed."""


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """A unique sample on its way through the bus."""

    key: str
    proposal: Proposal
    resolved: ResolvedSample
    round: int


class BranchSearch:
    """One branch under way. The state machine decides; this carries out what it decides.

    Attributes:
        space: what is searched.
        state: budget, attempts and known samples, under the sweep's schedule.
        candidates: what was measured, in the order of its arrival.
        evaluation_seconds: the workers' time for this branch.
        stats: what was asked of the source of proposals, and how long that took.
        converged: whether it no longer got better for as long as the sweep's patience allows.
    """

    def __init__(
        self,
        *,
        sweep_id: str,
        config: SmartSearchConfig,
        context: SampleContext,
        trace: TraceLoad | None,
        space: BranchSpace,
        evaluations: Evaluations,
        observer: Observer,
        elapsed: Callable[[], float],
        on_told: Callable[[Candidate], None],
    ) -> None:
        self.space = space
        self.state = branch_state(config, space)
        self.candidates: list[Candidate] = []
        self.evaluation_seconds = 0.0
        self.stats = SamplerStats()
        self.converged = False
        self._sweep_id = sweep_id
        self._config = config
        self._context = context
        self._trace = trace
        self._evaluations = evaluations
        self._observer = observer
        self._elapsed = elapsed
        self._on_told = on_told
        self._stagnation = stagnation(config)
        self._judged: dict[str, Judged] = {}
        self._weighed: set[str] = set()
        self._untold: dict[int, Proposal] = {}
        self._to_tell: asyncio.Queue[list[Tell]] = asyncio.Queue()
        self._evaluating: set[asyncio.Task[None]] = set()
        self._stopped = False

    @property
    def sweep(self) -> SweepControl:
        """The limits that the sweep sets."""
        return self._config.sweep

    @property
    def budget(self) -> int:
        """Unique successes that the sweep asks of the branch."""
        return self._config.sweep.max_rounds * self._config.sweep.per_round

    async def run(self, proposer: Proposer) -> None:
        """Search until the branch's state is final."""
        self.stats = proposer.stats
        async with asyncio.TaskGroup() as evaluating:
            # The last replays may end while the sampler is still told of duplicates.
            while not (self.state.finished and self._to_tell.empty()):
                # What has been measured is told before anything more is asked.
                if self.state.wanted and self._to_tell.empty() and not self._stopped:
                    await self._propose(proposer, evaluating)
                else:
                    await self._tell(proposer, await self._to_tell.get())
                self._observer.progressed(self)

    def stop(self) -> frozenset[asyncio.Task[None]]:
        """Propose nothing more. See `Search.stop`."""
        self._stopped = True
        return frozenset(self._evaluating)

    def conclude(self) -> None:
        """Propose nothing more, and end when nothing is in flight."""
        # Both the sweep and, with its last measurements, the branch may come to this.
        if not self.state.finished:
            self._to_tell.put_nowait(self.state.conclude())

    def keep_in_flight(self, parallel: int) -> None:
        """Keep so many samples in flight, where the schedule does not wait for whole rounds."""
        if isinstance(self.state, ContinuousState) and not self.state.finished:
            self.state.keep_in_flight(parallel)
            self._to_tell.put_nowait([])

    async def _propose(self, proposer: Proposer, evaluating: asyncio.TaskGroup) -> None:
        proposals = await proposer.propose(self.state.wanted)
        duplicates = await self._take(proposals, proposer, evaluating)
        if duplicates and self.state.wanted:
            claims = _Claims(self)
            found = await proposer.instead_of(duplicates[: self.state.wanted], claims)
            await self._take(found, proposer, evaluating)

    async def _take(
        self, proposals: Sequence[Proposal], proposer: Proposer, evaluating: asyncio.TaskGroup
    ) -> list[Proposal]:
        """Send out what is new, tell what is known; returns those that were no new samples."""
        if not proposals or self._stopped or not self.state.takes:
            return []
        resolved = [self._resolve(proposal.selection) for proposal in proposals]
        keys = [sample_key(one.sample) for one in resolved]
        current_round = self.state.round
        dispositions, tells = self.state.suggested(keys)
        self._untold |= {proposal.number: proposal for proposal in proposals}
        duplicates = []
        for key, proposal, one, what in zip(keys, proposals, resolved, dispositions, strict=True):
            if what is not Disposition.NEW:
                duplicates.append(proposal)
                continue
            evaluation = _Evaluation(key, proposal, one, current_round)
            if one.no_kv_room is not None:
                judged = refuse("no_kv_room", one.no_kv_room)
                tells += self._settle(evaluation, judged, None, waited=0.0)
            else:
                task = evaluating.create_task(self._evaluate(evaluation))
                self._evaluating.add(task)
                task.add_done_callback(self._evaluating.discard)
        await self._tell(proposer, tells)
        return duplicates

    def is_new(self, selection: Selection) -> str | None:
        """The key of a selection's sample, if nobody has asked about it."""
        key = sample_key(self._resolve(selection).sample)
        return key if self.state.is_new(key) else None

    def _resolve(self, selection: Selection) -> ResolvedSample:
        sample = unroll_sample(self._context, selection)
        return resolve_kv_load(self._context, selection, sample)

    async def _evaluate(self, evaluation: _Evaluation) -> None:
        time = asyncio.get_running_loop().time
        began = time()
        request = EvaluationRequest(
            evaluation_id=self._candidate_id(evaluation.proposal),
            sweep_id=self._sweep_id,
            sample=evaluation.resolved.sample,
            load=load_of(self._config, self._trace, evaluation.resolved.sample),
            sla=self._config.goal.sla,
            max_eval_seconds=self._config.sweep.max_eval_seconds,
        )
        try:
            result = await self._evaluations.evaluate(request)
        except EvaluationGivenUpError:
            return  # There is no verdict on it, and the search is about to end without one.
        judged = judge(
            result.measurement,
            config=self._config,
            candidate_id=request.evaluation_id,
            branch=self.space.mode,
            number=evaluation.proposal.number,
            sample=evaluation.resolved.sample,
            facts=evaluation.resolved.facts,
        )
        waited = max(0.0, time() - began - result.wall_seconds)
        tells = self._settle(evaluation, judged, result, waited=waited)
        self._observer.progressed(self)
        if tells:
            self._to_tell.put_nowait(tells)

    def _settle(
        self,
        evaluation: _Evaluation,
        judged: Judged,
        result: EvaluationResult | None,
        *,
        waited: float,
    ) -> list[Tell]:
        self._judged[evaluation.key] = judged
        if judged.candidate is not None:
            self.candidates.append(judged.candidate)
        if result is not None:
            self.evaluation_seconds += result.wall_seconds
        self._observer.evaluated(self._record(evaluation, judged, result, waited))
        return self.state.settled(evaluation.key, judged.verdict)

    async def _tell(self, proposer: Proposer, tells: Sequence[Tell]) -> None:
        if not tells:
            return
        await proposer.tell(
            [
                (
                    self._untold.pop(tell.number),
                    metrics_for_sampler(self._judged[tell.key].candidate, self._config.goal),
                )
                for tell in tells
            ]
        )
        # Under the schedule of rounds this is the order of the suggestions, not of the arrivals.
        for key in dict.fromkeys(tell.key for tell in tells):
            self._weigh(key)

    def _weigh(self, key: str) -> None:
        """Take a told sample into account, once, for what may end the search early."""
        candidate = self._judged[key].candidate
        if candidate is None or key in self._weighed:
            return
        self._weighed.add(key)
        self._stagnation.add(candidate)
        if self._stagnation.lost and not self.state.finished:
            self.converged = True
            self.conclude()
        self._on_told(candidate)

    def _candidate_id(self, proposal: Proposal) -> str:
        return f"{self._sweep_id}-{self.space.mode}-{proposal.number}"

    def _record(
        self,
        evaluation: _Evaluation,
        judged: Judged,
        result: EvaluationResult | None,
        waited: float,
    ) -> CandidateRecord:
        proposal, sample = evaluation.proposal, evaluation.resolved.sample
        candidate = judged.candidate
        return CandidateRecord(
            candidate_id=self._candidate_id(proposal),
            branch=self.space.mode,
            round=evaluation.round,
            number=proposal.number,
            outcome=judged.verdict.outcome,
            cause=judged.verdict.cause,
            detail=judged.verdict.detail,
            score=candidate.score if candidate else None,
            objectives={t.value: v for t, v in candidate.objectives.items()} if candidate else None,
            used_gpus=proposal.selection.config.used_gpus,
            config=sample,
            metrics=dict(candidate.report) if candidate else None,
            facts=dict(evaluation.resolved.facts),
            projection=proposal.projection.as_metadata() if proposal.projection else None,
            source=proposal.source,
            stand_in=proposal.stand_in,
            worker=result.worker if result else None,
            timings=_timings(result, waited) if result else None,
            found_seconds=self._elapsed(),
        )


class _Claims:
    """Whether selections are new to a branch, and to each other."""

    def __init__(self, branch: BranchSearch) -> None:
        self._branch = branch
        self._claimed: set[str] = set()

    def __call__(self, selection: Selection) -> bool:
        key = self._branch.is_new(selection)
        if key is None or key in self._claimed:
            return False
        self._claimed.add(key)
        return True


def branch_state(config: SmartSearchConfig, space: BranchSpace) -> BranchState:
    """The state of a branch that has not begun, under the sweep's schedule."""
    sweep = config.sweep
    points = enumerable_points(config, space)
    if sweep.schedule == "continuous":
        return ContinuousState(
            per_round=sweep.per_round,
            max_rounds=sweep.max_rounds,
            parallel=sweep.parallel_evals,
            batch=batch_for(sweep.parallel_evals),
            points=points,
        )
    return RoundsState(per_round=sweep.per_round, max_rounds=sweep.max_rounds, points=points)


def stagnation(config: SmartSearchConfig) -> Stagnation:
    """The measure of what the sweep's patience is lost by."""
    return Stagnation(
        config.goal.objectives,
        patience=config.sweep.patience,
        min_improvement=config.sweep.min_improvement,
    )


def _timings(result: EvaluationResult, waited: float) -> CandidateTimings:
    return CandidateTimings(
        waited=waited,
        build=result.measurement.build_seconds,
        replay=result.measurement.replay_seconds,
        wall=result.wall_seconds,
    )

"""Drives the branches of a sweep: proposals out, measurements in, until every branch has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from schemas.config import SmartSearchConfig
from schemas.messages import EvaluationRequest, EvaluationResult, TraceLoad
from schemas.results import CandidateRecord, CandidateTimings
from spica_async.branch import BranchState, Disposition, Tell
from spica_async.evaluations import EvaluationGivenUpError, Evaluations
from spica_async.fleet import FleetView
from spica_async.judging import Judged, judge, metrics_for_sampler, refuse
from spica_async.loads import load_of
from spica_async.plan.types import SweepPlan
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
from spica_async.space.branch import BranchSpace

ProposerFactory = Callable[[BranchSpace], AbstractAsyncContextManager[Proposer]]
"""Opens the source of one branch's proposals."""


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
        state: budget, rounds, attempts and known samples.
        candidates: what was measured, in the order of its arrival.
        evaluation_seconds: the workers' time for this branch.
        stats: what was asked of the source of proposals, and how long that took.
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
    ) -> None:
        self.space = space
        self.state = BranchState(
            target=config.sweep.per_round,
            max_rounds=config.sweep.max_rounds,
            points=enumerable_points(config, space),
        )
        self.candidates: list[Candidate] = []
        self.evaluation_seconds = 0.0
        self.stats = SamplerStats()
        self._sweep_id = sweep_id
        self._config = config
        self._context = context
        self._trace = trace
        self._evaluations = evaluations
        self._observer = observer
        self._judged: dict[str, Judged] = {}
        self._untold: dict[int, Proposal] = {}
        self._wave_ends: asyncio.Queue[list[Tell]] = asyncio.Queue()
        self._evaluating: set[asyncio.Task[None]] = set()
        self._stopped = False

    @property
    def max_rounds(self) -> int:
        """Rounds that the sweep asks for."""
        return self._config.sweep.max_rounds

    @property
    def target(self) -> int:
        """Unique successes that each round asks for."""
        return self._config.sweep.per_round

    async def run(self, proposer: Proposer) -> None:
        """Search until the branch's state is final."""
        self.stats = proposer.stats
        async with asyncio.TaskGroup() as evaluating:
            # The last wave may end while the sampler is still told of duplicates.
            while not (self.state.finished and self._wave_ends.empty()):
                # A wave that has ended is told before anything more is asked.
                if self.state.wanted and self._wave_ends.empty() and not self._stopped:
                    await self._propose(proposer, evaluating)
                else:
                    await self._tell(proposer, await self._wave_ends.get())
                self._observer.progressed(self)

    def stop(self) -> frozenset[asyncio.Task[None]]:
        """Propose nothing more. See `Search.stop`."""
        self._stopped = True
        return frozenset(self._evaluating)

    async def _propose(self, proposer: Proposer, evaluating: asyncio.TaskGroup) -> None:
        proposals = await proposer.propose(self.state.wanted)
        if self._stopped:
            return
        resolved = [self._resolve(proposal) for proposal in proposals]
        keys = [sample_key(one.sample) for one in resolved]
        current_round = self.state.round
        dispositions, tells = self.state.suggested(keys)
        self._untold |= {proposal.number: proposal for proposal in proposals}
        for key, proposal, one, what in zip(keys, proposals, resolved, dispositions, strict=True):
            if what is not Disposition.NEW:
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

    def _resolve(self, proposal: Proposal) -> ResolvedSample:
        sample = unroll_sample(self._context, proposal.selection)
        return resolve_kv_load(self._context, proposal.selection, sample)

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
            self._wave_ends.put_nowait(tells)

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
        if tells:
            await proposer.tell(
                [
                    (
                        self._untold.pop(tell.number),
                        metrics_for_sampler(self._judged[tell.key].candidate, self._config.goal),
                    )
                    for tell in tells
                ]
            )

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
            stand_in=proposal.stand_in,
            worker=result.worker if result else None,
            timings=_timings(result, waited) if result else None,
        )


class Search:
    """All branches of one sweep, run side by side."""

    def __init__(
        self,
        *,
        sweep_id: str,
        plan: SweepPlan,
        trace: TraceLoad | None,
        evaluations: Evaluations,
        observer: Observer,
    ) -> None:
        context = sample_context(plan)
        self.branches = tuple(
            BranchSearch(
                sweep_id=sweep_id,
                config=plan.config,
                context=context,
                trace=trace,
                space=space,
                evaluations=evaluations,
                observer=observer,
            )
            for space in plan.branches
        )

    @property
    def candidates(self) -> list[Candidate]:
        """What all branches have measured so far."""
        return [candidate for branch in self.branches for candidate in branch.candidates]

    async def run(self, open_proposer: ProposerFactory) -> None:
        """Run every branch to its end; what was found is there whenever this is cancelled."""

        async def run_branch(branch: BranchSearch) -> None:
            async with open_proposer(branch.space) as proposer:
                await branch.run(proposer)

        async with asyncio.TaskGroup() as group:
            for branch in self.branches:
                group.create_task(run_branch(branch))

    def stop(self) -> frozenset[asyncio.Task[None]]:
        """Propose nothing more; `run` goes on taking results, and has to be cancelled in the end.

        Returns:
            The evaluations under way; each ends with its result, or when it is given up.
        """
        return frozenset(task for branch in self.branches for task in branch.stop())


def enumerable_points(config: SmartSearchConfig, space: BranchSpace) -> int | None:
    """The branch's distinct samples, if they can be counted and the budget covers them all."""
    points = space.distinct_selections
    if points is None or points > config.sweep.max_rounds * config.sweep.per_round:
        return None
    return points


def sample_context(plan: SweepPlan) -> SampleContext:
    """What every sample of the sweep has in common."""
    config = plan.config
    return SampleContext(
        space=config.search_space,
        is_moe=plan.model.is_moe,
        longest_sequence=plan.longest_sequence,
        capacity=plan.capacity,
        predictors=plan.predictors.best_by_interval,
        planner_target=config.goal.target.planner_optimization_target,
        isl=config.workload.isl or 0,
        osl=config.workload.osl or 0,
        facts={"needs_wide_ep": plan.needs_wide_ep},
    )


def _timings(result: EvaluationResult, waited: float) -> CandidateTimings:
    return CandidateTimings(
        waited=waited,
        build=result.measurement.build_seconds,
        replay=result.measurement.replay_seconds,
        wall=result.wall_seconds,
    )

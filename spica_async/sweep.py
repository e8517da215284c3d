"""One sweep from its plan to its result, over a bus that somebody else's workers listen to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from schemas.goal import OptimizationTarget
from schemas.messages import TraceLoad
from schemas.results import (
    BranchEnd,
    BranchResult,
    CandidateRecord,
    RankedCandidate,
    SweepResult,
    SweepStatus,
    SweepTimings,
    Tally,
)
from spica_async.branch import Phase
from spica_async.bus.port import Bus
from spica_async.evaluations import Discarded, Evaluations
from spica_async.judging import study_objectives
from spica_async.plan.types import SweepPlan
from spica_async.proposals import EnumeratedProposer, Proposer, StudyProposer
from spica_async.results import ResultsFolder
from spica_async.sampling.process import SamplerProcess
from spica_async.sampling.types import Study
from spica_async.scoring import Candidate, pareto_front, rank
from spica_async.search import BranchSearch, Observer, ProposerFactory, Search, enumerable_points
from spica_async.space.branch import BranchSpace


@dataclass(frozen=True)
class Sweep:
    """One sweep and where everything of it goes.

    Attributes:
        sweep_id: its name, and its evaluations' prefix.
        plan: what to search.
        trace: the trace of the workload, if it is one.
        folder: takes everything that is found.
        display: hears of everything after the folder has it.
        versions: of the engine that the workers run.
        fingerprint: of the same, by which requests find their workers.
        planning_seconds: what the plan took.
    """

    sweep_id: str
    plan: SweepPlan
    trace: TraceLoad | None
    folder: ResultsFolder
    display: Observer
    versions: dict[str, str]
    fingerprint: str
    planning_seconds: float

    async def run(self, bus: Bus, stop: asyncio.Event) -> SweepResult:
        """Search until every branch has ended or `stop` is set, whichever comes first.

        However this ends, what was found until then is written.

        Raises:
            SpicaError: if the results cannot be written.
        """
        time = asyncio.get_running_loop().time
        began = time()
        async with Evaluations.open(
            bus,
            coordinator=self.sweep_id,
            fingerprint=self.fingerprint,
            parallel=self.plan.config.sweep.parallel_evals,
        ) as evaluations:
            search = Search(
                sweep_id=self.sweep_id,
                plan=self.plan,
                trace=self.trace,
                evaluations=evaluations,
                observer=_Recorder(self.folder, self.display),
            )
            interrupted = True
            try:
                interrupted = await _run_until(search, self._open_proposer, stop)
            finally:
                result = self._result(
                    search,
                    interrupted=interrupted,
                    late=evaluations.discarded[Discarded.LATE],
                    search_seconds=time() - began,
                )
                self.folder.write_result(result, pareto=self._is_pareto)
        return result

    @property
    def _is_pareto(self) -> bool:
        return self.plan.config.goal.target is OptimizationTarget.PARETO

    @asynccontextmanager
    async def _open_proposer(self, space: BranchSpace) -> AsyncIterator[Proposer]:
        config = self.plan.config
        if enumerable_points(config, space) is not None:
            yield EnumeratedProposer(space, seed=config.sweep.random_seed)
            return
        study = Study(
            branch=space.mode,
            seed=config.sweep.random_seed,
            parameters=space.parameters,
            objectives=study_objectives(config.goal),
        )
        async with SamplerProcess(
            study,
            suggest_timeout_seconds=config.sweep.suggest_timeout_seconds,
            log_path=self.folder.logs / f"sampler-{space.mode}.log",
        ) as sampler:
            yield StudyProposer(space, sampler)

    def _result(
        self, search: Search, *, interrupted: bool, late: int, search_seconds: float
    ) -> SweepResult:
        goal = self.plan.config.goal
        found = search.candidates
        ordered = pareto_front(found, goal.objectives) if self._is_pareto else rank(found)
        branches = [branch_result(branch) for branch in search.branches]
        tally = _sum_tallies(branch.tally for branch in branches)
        return SweepResult(
            sweep_id=self.sweep_id,
            status=sweep_status(
                [branch.end for branch in branches],
                interrupted=interrupted,
                useful=any(is_useful(candidate) for candidate in found),
            ),
            ranking=[_ranked(candidate) for candidate in ordered],
            tally=tally.model_copy(update={"late_results": late}),
            timings=SweepTimings(
                total=self.planning_seconds + search_seconds,
                planning=self.planning_seconds,
                search=search_seconds,
                optimizer=sum(branch.optimizer_seconds for branch in branches),
                evaluations=sum(branch.evaluation_seconds for branch in branches),
            ),
            branches=branches,
            results_dir=str(self.folder.path),
            seed=self.plan.config.sweep.random_seed,
            versions=self.versions,
        )


class _Recorder:
    """An observer that writes before it shows."""

    def __init__(self, folder: ResultsFolder, display: Observer) -> None:
        self._folder = folder
        self._display = display

    def evaluated(self, record: CandidateRecord) -> None:
        self._folder.append(record)
        self._display.evaluated(record)

    def progressed(self, branch: BranchSearch) -> None:
        self._display.progressed(branch)


def sweep_status(ends: Iterable[BranchEnd], *, interrupted: bool, useful: bool) -> SweepStatus:
    """What to call a sweep by how its branches ended.

    Args:
        ends: the end of each branch.
        interrupted: whether it was stopped from outside.
        useful: whether some candidate serves the goal at all.
    """
    if interrupted:
        return "interrupted"
    if not useful:
        return "nothing_feasible"
    known = set(ends)
    if "stalled" in known:
        return "stalled"
    return "completed" if "completed" in known else "exhausted"


def is_useful(candidate: Candidate) -> bool:
    """Whether any request of the candidate met the SLA, where the goal counts those that do."""
    return all(value > 0 for target, value in candidate.objectives.items() if target.needs_sla)


def branch_result(branch: BranchSearch) -> BranchResult:
    """How a branch ended, or that it has not."""
    state = branch.state
    end: BranchEnd = "interrupted"
    reason = "stopped before its end"
    match state.phase:
        case Phase.COMPLETED:
            end, reason = "completed", f"all {branch.max_rounds} rounds found their candidates"
        case Phase.EXHAUSTED:
            end, reason = "exhausted", "every distinct sample was evaluated"
        case Phase.STALLED:
            end = "stalled"
            reason = f"round {state.round} ran out of attempts: what is proposed is known or fails"
        case Phase.FAILED:
            end = "failed"
            verdict = state.sole_failure
            assert verdict is not None  # noqa: S101  # the phase says so
            reason = f"everything tried is {verdict.outcome}: {verdict.cause}: {verdict.detail}"
    outcomes = state.tally
    return BranchResult(
        branch=branch.space.mode,
        end=end,
        reason=reason,
        rounds=state.round,
        tally=Tally(
            attempts=state.attempts,
            feasible=outcomes["feasible"],
            infeasible=outcomes["infeasible"],
            unsupported=outcomes["unsupported"],
            failed=outcomes["failed"],
            cached=state.duplicates,
            stand_ins=branch.stats.stand_ins,
            causes=dict(state.causes),
        ),
        optimizer_seconds=branch.stats.suggest_seconds,
        evaluation_seconds=branch.evaluation_seconds,
    )


async def _run_until(search: Search, open_proposer: ProposerFactory, stop: asyncio.Event) -> bool:
    """Run the search; cancel it once `stop` is set. Returns whether that happened."""
    async with asyncio.TaskGroup() as group:
        searching = group.create_task(search.run(open_proposer))
        stopping = group.create_task(stop.wait())
        await asyncio.wait({searching, stopping}, return_when=asyncio.FIRST_COMPLETED)
        interrupted = not searching.done()
        searching.cancel()
        stopping.cancel()
    return interrupted


def _sum_tallies(tallies: Iterable[Tally]) -> Tally:
    total = Tally().model_dump()
    for tally in tallies:
        for name, value in tally.model_dump().items():
            if name == "causes":
                for cause, count in value.items():
                    total["causes"][cause] = total["causes"].get(cause, 0) + count
            else:
                total[name] += value
    return Tally.model_validate(total)


def _ranked(candidate: Candidate) -> RankedCandidate:
    return RankedCandidate(
        candidate_id=candidate.candidate_id,
        score=candidate.score,
        objectives={target.value: value for target, value in candidate.objectives.items()},
        used_gpus=candidate.used_gpus,
        config=candidate.sample,
        metrics=dict(candidate.report),
        facts=dict(candidate.facts),
    )

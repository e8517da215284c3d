"""One sweep as it was planned, and what its earlier runs have come to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from schemas.goal import OptimizationTarget
from schemas.messages import TraceLoad
from spica_async.judge.verdict import study_objectives
from spica_async.optimizer.profiles import open_sampler
from spica_async.optimizer.proposals import EnumeratedProposer, Proposer, StudyProposer
from spica_async.optimizer.types import Study
from spica_async.plan.budget import enumerable_points
from spica_async.plan.types import SweepPlan
from spica_async.search.past_runs import PastRuns
from spica_async.space.branch import BranchSpace


@dataclass(frozen=True)
class Sweep:
    """One sweep.

    Attributes:
        sweep_id: its name, with which the ids of its evaluations begin.
        plan: what to search.
        trace: the trace of the workload, if it is one.
        folder: the path of its results.
        versions: the versions of the engine's parts.
        fingerprint: stands for these versions in the name of the requests' queue.
        planning_seconds: what its plans took, those of earlier runs included.
        past: what earlier runs have come to.
    """

    sweep_id: str
    plan: SweepPlan
    trace: TraceLoad | None
    folder: Path
    versions: dict[str, str]
    fingerprint: str
    planning_seconds: float
    past: PastRuns = field(default_factory=PastRuns)

    @property
    def is_pareto(self) -> bool:
        """Whether there is a front in place of a ranking."""
        return self.plan.config.goal.target is OptimizationTarget.PARETO

    @asynccontextmanager
    async def open_proposer(self, space: BranchSpace) -> AsyncIterator[Proposer]:
        """The source of a branch's proposals, while the context is open."""
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
        async with open_sampler(
            study,
            config.sweep.optimizer,
            suggest_timeout_seconds=config.sweep.suggest_timeout_seconds,
            log_path=self.folder / "logs" / f"sampler-{space.mode}.log",
        ) as sampler:
            yield StudyProposer(
                space,
                sampler,
                seeds=self.plan.seeds.get(space.mode, ()),
                finds_neighbours=config.sweep.optimizer.profile == "fast",
                seed=config.sweep.random_seed,
            )

"""One sweep as it was planned, and what its earlier runs have come to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from schemas.accuracy import BackendAccuracy
from schemas.journal import Planned, PlannedBranch
from schemas.messages import EvaluationRequest, Sample, TraceLoad
from spica_async.engine.model_files import named_by_content
from spica_async.errors import SpicaError
from spica_async.evaluate.loads import load_of, scaled
from spica_async.judge.verdict import study_objectives
from spica_async.optimizer.profiles import open_sampler
from spica_async.optimizer.proposals import EnumeratedProposer, Proposer, StudyProposer
from spica_async.optimizer.types import Study
from spica_async.plan.types import SweepPlan, enumerable_points
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
        accuracy: what is known of how far replays are from silicon, for each backend.
    """

    sweep_id: str
    plan: SweepPlan
    trace: TraceLoad | None
    folder: Path
    versions: dict[str, str]
    fingerprint: str
    planning_seconds: float
    past: PastRuns = field(default_factory=PastRuns)
    accuracy: tuple[BackendAccuracy, ...] = ()

    @property
    def model_sha256(self) -> str | None:
        """The digest of the model's files; None: the model ships with the engine."""
        return None if self.plan.model_files is None else self.plan.model_files.sha256

    @property
    def replicates(self) -> bool:
        """Whether samples are measured more than once.

        A sweep that an older version has begun goes on as that would have.
        """
        planned = self.past.planned
        wanted = self.plan.config.confirm.enabled != "off"
        return wanted if planned is None else planned.replicates

    def request(
        self,
        evaluation_id: str,
        sample: Sample,
        *,
        replicate: int = 0,
        load: float = 1.0,
        capture_interval_ms: float | None = None,
    ) -> EvaluationRequest:
        """The request to measure a sample.

        Args:
            evaluation_id: the name of the request.
            sample: what to measure.
            replicate: how often it was measured before, under that load.
            load: factor of the workload's own load.
            capture_interval_ms: see `EvaluationRequest`.
        """
        config, model = self.plan.config, self.plan.model_files
        return EvaluationRequest(
            evaluation_id=evaluation_id,
            sweep_id=self.sweep_id,
            sample=named_by_content(sample, model),
            model=model,
            load=scaled(load_of(config, self.trace, sample), load),
            sla=config.goal.sla,
            max_eval_seconds=config.sweep.max_eval_seconds,
            replicate=replicate,
            capture_interval_ms=capture_interval_ms,
        )

    def planned_fact(self, *, at: float) -> Planned:
        """The fact that it was planned.

        Args:
            at: seconds that the sweep has run for.
        """
        return Planned(
            at=at,
            digest=self.plan.digest,
            trace_sha256=None if self.trace is None else self.trace.sha256,
            model_sha256=self.model_sha256,
            versions=self.versions,
            planning_seconds=self.planning_seconds,
            branches=[
                PlannedBranch(
                    branch=space.mode,
                    backends=[str(entry) for entry in space.backend.entries],
                    configurations=len(space.pool),
                    parameters=[parameter.name for parameter in space.parameters],
                )
                for space in self.plan.branches
            ],
            replicates=self.replicates,
        )

    def check_unchanged(self) -> str | None:
        """See that it can be gone on with as it was begun, if it was.

        Returns:
            What the user should know, where an older version has noted no digest of the model.

        Raises:
            SpicaError: the engine, the trace, the model or the plan is another one by now.
        """
        past, versions = self.past.planned, self.versions
        if past is None:
            return None
        if past.versions != versions:
            changed = sorted(
                name
                for name in past.versions.keys() | versions.keys()
                if past.versions.get(name) != versions.get(name)
            )
            was = ", ".join(f"{name} {past.versions.get(name, 'missing')}" for name in changed)
            raise SpicaError(
                f"the sweep was begun with another engine: {was}; what two engines measure cannot"
                " be compared: go on with that one, or run the sweep's config.yaml anew"
            )
        if past.trace_sha256 != (None if self.trace is None else self.trace.sha256):
            raise SpicaError(
                "workload.trace_path: the trace has changed since the sweep was begun, or another"
                " version read other fields of it: put back the one that it was begun with, or run"
                " the sweep's config.yaml anew"
            )
        if past.model_sha256 not in (None, self.model_sha256):
            raise SpicaError(
                "search_space.model_name: the model's folder has changed since the sweep was begun:"
                " put back the one that it was begun with, or run the sweep's config.yaml anew"
            )
        if past.digest != self.plan.digest:
            raise SpicaError(
                "what would be searched is no longer what it was when the sweep was begun, as after"
                " an update of this program, of the model or of performance data: run the sweep's"
                " config.yaml anew"
            )
        if past.model_sha256 is not None or self.plan.model_files is None:
            return None
        return (
            "warning: search_space.model_name: the version that has begun this sweep did not note"
            " what the model's folder held; if that has changed since, run the sweep's config.yaml"
            " anew"
        )

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

"""Measures one deployment under one load, without a search."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

from schemas.config import SmartSearchConfig
from schemas.messages import EvaluationResult
from schemas.results import RankedCandidate
from spica_async.bus.memory import MemoryBus
from spica_async.config.inputs import Inputs
from spica_async.engine.versions import engine_fingerprint, engine_versions
from spica_async.errors import InputError, NothingFeasibleError
from spica_async.evaluate.fleet import Fleet
from spica_async.evaluate.in_flight import Evaluations
from spica_async.judge.ranking import ranking
from spica_async.judge.scoring import Candidate, Report, measured_again
from spica_async.judge.verdict import judge, soundness
from spica_async.plan.types import Progress, SweepPlan
from spica_async.report.folder import new_sweep_id
from spica_async.search.branches import sample_context
from spica_async.search.confirmation import Confirmation
from spica_async.search.evaluation import replicate_id
from spica_async.search.sweep import Sweep
from spica_async.service.local_worker import coordinators_worker
from spica_async.space.sample import ResolvedSample, resolve_kv_load, unroll_sample
from workers.settings import ENGINE_WARM_UP, ENGINE_WARM_UP_WITH_PLANNER, ChildSettings

Measured = Callable[[Candidate], None]
"""Called with what is known after each replay."""


async def plan_of(inputs: Inputs, progress: Progress) -> Sweep:
    """A sweep of a configuration, planned and not searched.

    Raises:
        SpicaError: it cannot be planned; an `InputError` if that is the configuration's fault.
    """
    plan = await inputs.plan(progress)
    return Sweep(
        sweep_id=new_sweep_id(),
        plan=plan,
        trace=inputs.trace,
        folder=Path(),
        versions=engine_versions(),
        fingerprint=engine_fingerprint(),
        planning_seconds=0.0,
    )


def only_deployment(plan: SweepPlan) -> ResolvedSample:
    """The one deployment that a plan comes to.

    Raises:
        InputError: there are several, or it has no room for a request.
    """
    choices = [f"{len(plan.branches)} deployment modes"] if len(plan.branches) > 1 else []
    for space in plan.branches:
        if space.distinct_selections == 1:
            continue
        if len(space.pool) > 1:
            choices.append(f"{space.mode}: {len(space.pool)} parallel configurations")
        if isinstance(space.kv_load, tuple):
            choices.append(f"{space.mode}: a range of KV loads")
        knobs = [knob.name for knob in (space.backend, *space.knobs) if len(knob.entries) > 1]
        choices += [f"{space.mode}: several entries of {', '.join(knobs)}"] if knobs else []
    if choices:
        listed = "\n".join(f"  {choice}" for choice in choices)
        raise InputError(
            "search_space: more than one deployment; leave one entry of each list, in the file or"
            f" by --set:\n{listed}"
        )
    (space,) = plan.branches
    context, selection = sample_context(plan), space.selection(0)
    resolved = resolve_kv_load(context, selection, unroll_sample(context, selection))
    if resolved.no_kv_room is not None:
        raise InputError(f"search_space: {resolved.no_kv_room}")
    return resolved


async def predict(
    sweep: Sweep,
    deployment: ResolvedSample,
    *,
    slots: int,
    replicates: int | None,
    logs: Path,
    measured: Measured,
) -> RankedCandidate:
    """Replay a deployment until its mean is known.

    Args:
        sweep: has the load, the goal, and in `confirm` how well the mean is to be known.
        deployment: what to replay.
        slots: replays at a time, on this machine.
        replicates: how many replays to make, whatever `confirm` says; none: as it says.
        logs: the folder for what replay processes have to say.
        measured: called after each replay.

    Raises:
        NothingFeasibleError: the first replay came to nothing that can be scored.
        SpicaError: none can be started.
    """
    policy = deployment.sample["planner_scaling_policy"]
    warm_up = ENGINE_WARM_UP if policy == "disabled" else ENGINE_WARM_UP_WITH_PLANNER
    children = ChildSettings(warm_up=warm_up, log_folder=logs)
    bus = MemoryBus()
    async with (
        coordinators_worker(bus, None, slots=slots, children=children),
        Evaluations(
            bus, Fleet(sweep.fingerprint), coordinator=sweep.sweep_id, parallel=slots
        ).open() as evaluations,
    ):
        prediction = _Prediction(sweep, deployment, evaluations, measured)
        candidate = await prediction.run(replicates)
    (entry,) = ranking([candidate], sweep.plan.config.goal)
    return entry


class _Prediction:
    def __init__(
        self,
        sweep: Sweep,
        deployment: ResolvedSample,
        evaluations: Evaluations,
        measured: Measured,
    ) -> None:
        self._sweep = sweep
        self._deployment = deployment
        self._evaluations = evaluations
        self._measured = measured

    async def run(self, replicates: int | None) -> Candidate:
        candidate = self._scored(await self._replay(0))
        self._measured(candidate)
        if replicates is not None:
            for number, report in (await self._reports(range(1, replicates))).items():
                candidate = self._again(candidate, number, report)
            return candidate
        confirmation = Confirmation(_for_one(self._sweep.plan.config), enabled=True)
        while not confirmation.is_over([candidate]):
            replays = {}
            while (replay := confirmation.next_replay([candidate])) is not None:
                confirmation.started(replay)
                replays[replay.replicate] = replay
            for number, report in (await self._reports(replays)).items():
                candidate = self._again(candidate, number, report)
                confirmation.ended(replays[number], sound=report is not None)
        return candidate

    def _again(self, candidate: Candidate, number: int, report: Report | None) -> Candidate:
        candidate = measured_again(candidate, number, report, self._sweep.plan.config.goal)
        self._measured(candidate)
        return candidate

    async def _reports(self, numbers: Iterable[int]) -> dict[int, Report | None]:
        """What further replays have measured, in the order of their numbers; None: nothing."""
        async with asyncio.TaskGroup() as group:
            tasks = {number: group.create_task(self._replay(number)) for number in numbers}
        reports: dict[int, Report | None] = {}
        for number, task in tasks.items():
            measurement = task.result().measurement
            is_sound = soundness(measurement, self._sweep.plan.config.goal).outcome == "feasible"
            reports[number] = measurement.report if is_sound else None
        return reports

    async def _replay(self, number: int) -> EvaluationResult:
        name = replicate_id(self._sweep.sweep_id, number)
        request = self._sweep.request(name, self._deployment.sample, replicate=number)
        return await self._evaluations.evaluate(request)

    def _scored(self, result: EvaluationResult) -> Candidate:
        judged = judge(
            [result.measurement],
            config=self._sweep.plan.config,
            candidate_id=self._sweep.sweep_id,
            branch=str(self._deployment.sample["deployment_mode"]),
            number=0,
            sample=self._deployment.sample,
            facts=self._deployment.facts,
        )
        if judged.candidate is None:
            verdict = judged.verdict
            raise NothingFeasibleError(f"{verdict.outcome}: {verdict.cause}: {verdict.detail}")
        return judged.candidate


def _for_one(config: SmartSearchConfig) -> SmartSearchConfig:
    """A configuration that confirms one candidate, under its own load alone."""
    confirm = config.confirm.model_copy(update={"top": 1, "loads": [1.0]})
    goal = config.goal.model_copy(update={"robust": False})
    return config.model_copy(update={"confirm": confirm, "goal": goal})

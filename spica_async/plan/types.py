"""The plan of one sweep, and what has to be asked of the engine to make it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from pydantic import JsonValue

from schemas.config import SmartSearchConfig
from schemas.goal import PlannerTarget
from schemas.messages import ModelFiles, Sample, TraceLoad
from schemas.search_space import Backend, DeploymentMode, PinnedShape, Role
from spica_async.engine.estimates import Steps, StepTimes
from spica_async.engine.facts import HardwareFacts, ModelFacts, needs_wide_ep
from spica_async.engine.planner import Predictor, WindowLoad
from spica_async.plan.load_forecast import LoadPredictorResult
from spica_async.space.branch import BranchSpace, Selection
from spica_async.space.capacity import CapacityTable

_NAMED: Final = 3

Progress = Callable[[str], None]
"""Takes one line on what is being done now."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What a plan is made of; the trace is checked, or None for a synthetic workload."""

    config: SmartSearchConfig
    trace: TraceLoad | None


@dataclass(frozen=True, slots=True)
class Dropped:
    """Something that will not be searched, and why."""

    what: str
    reason: str


def dropped_lines(dropped: Iterable[Dropped]) -> list[str]:
    """A line for each reason, with what has it: some of that by name, the rest by number."""
    by_reason: dict[str, list[str]] = {}
    for one in dropped:
        by_reason.setdefault(one.reason, []).append(one.what)
    return [f"{_some(names)}: {reason}" for reason, names in by_reason.items()]


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class SweepPlan:
    """Everything that is settled before the first suggestion.

    Attributes:
        config: the configuration as it is searched, without the policies that its goal rules out.
        branches: one per viable deployment mode, in the configuration's order.
        dropped: shapes, backends, modes and policies that are left out.
        warnings: what the user should know about settings that have no effect.
        model: facts about the model.
        hardware: facts about the SKU.
        longest_sequence: tokens of the longest sequence that a worker must hold.
        capacity: the engine's KV capacity of every shape that is searched.
        predictors: the load-predictor sub-sweep.
        backend_versions: the version of each viable backend whose performance data is used.
        model_files: the model itself where it does not ship with the engine, as it was planned.
        seeds: what each branch tries first beside the middle of its space, best first; none for a
            branch that is evaluated as a whole, or without a warm start.
        digest: see `build.plan_digest`.
        baseline: what every candidate is held against; none: nothing.
    """

    config: SmartSearchConfig
    branches: tuple[BranchSpace, ...]
    dropped: tuple[Dropped, ...]
    warnings: tuple[str, ...]
    model: ModelFacts
    hardware: HardwareFacts
    longest_sequence: int
    capacity: CapacityTable
    predictors: LoadPredictorResult
    backend_versions: Mapping[Backend, str]
    digest: str
    seeds: Mapping[DeploymentMode, tuple[Selection, ...]] = field(default_factory=dict)
    model_files: ModelFiles | None = None
    baseline: Selection | None = None

    @property
    def needs_wide_ep(self) -> bool:
        """Whether one node cannot hold twice the weights of this MoE model."""
        return needs_wide_ep(self.model, self.hardware)


def enumerable_points(config: SmartSearchConfig, space: BranchSpace) -> int | None:
    """The distinct samples of a branch that is evaluated as a whole; None for any other.

    It is where its samples can be counted, and the budget covers them all.
    """
    points = space.distinct_selections
    if points is None or points > config.sweep.max_rounds * config.sweep.per_round:
        return None
    return points


class PlanningEngine(Protocol):
    """The questions that planning asks; `spica_async.engine` answers them in a child process.

    Attributes:
        unrepresentable_scalars: Scalars that a replay has no counterpart of, and why.
    """

    unrepresentable_scalars: Mapping[str, str]

    def model_facts(self, model: str) -> ModelFacts:
        """Facts about a model. Raises UnknownModelError."""

    def hardware_facts(self, sku: str) -> HardwareFacts:
        """Facts about a SKU. Raises UnknownSkuError."""

    def backend_version(self, sku: str, backend: Backend) -> str:
        """The newest version with performance data. Raises NoPerfDatabaseError."""

    def default_shape(self, model: str, sku: str, backend: Backend, gpus: int) -> PinnedShape:
        """What is deployed where nobody has chosen. Raises NoDefaultShapeError."""

    def kv_tokens_per_rank(self, sample: Sample, role: Role) -> int:
        """KV tokens of one attention rank. Raises ShapeRejectedError."""

    def probe_replay(self, sample: Sample) -> str | None:
        """Why the engine cannot replay this backend in this mode, or None."""

    def step_times(
        self, workers: Sequence[tuple[Sample, Role]], steps: Steps
    ) -> Sequence[StepTimes | str]:
        """How long single steps of each worker take by estimate, or why nobody knows."""

    def ignored_knobs(self, backend: Backend) -> Mapping[str, str]:
        """Knobs that replays of this backend ignore, and why."""

    def unread_planner_knobs(self, planner_target: PlannerTarget) -> Mapping[str, str]:
        """Knobs of the planner that it does not read under this target, and why."""

    def check_planner_fields(self, fields: Mapping[str, JsonValue]) -> str | None:
        """What the planner's own configuration class says against these fields, or None."""

    def trace_windows(self, path: Path, interval_seconds: int) -> Sequence[WindowLoad]:
        """The trace in windows of `interval_seconds`."""

    def make_predictor(self, fields: Mapping[str, JsonValue], interval_seconds: int) -> Predictor:
        """One of the planner's own load predictors."""

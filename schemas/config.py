"""`SmartSearchConfig`: everything one sweep is asked to do."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from schemas.base import ConfigModel, FieldError
from schemas.confirm import Confirm
from schemas.goal import OptimizationGoal
from schemas.search_space import PinnedConfig, PinnedPair, SearchSpace, pinned_config
from schemas.workload import LOAD_FIELDS, Workload

DEFAULT_KV_LOAD_RANGE = (0.0, 1.0)


OptimizerProfile = Literal["fast", "vizier_default", "random"]
Schedule = Literal["rounds", "continuous"]
_DEFAULT_SAMPLER_MEMORY_MB = 1200
_SUGGEST_TIMEOUT = 180.0


class OptimizerSettings(ConfigModel):
    """The `sweep.optimizer` block: what proposes the candidates of a branch.

    Attributes:
        profile: `fast` is GP-UCB-PE with settings that were measured to lose nothing,
            `vizier_default` is the same algorithm as Vizier sets it up, `random` draws evenly.
        max_memory_mb: resident memory at which an optimizer process is replaced by a new one.
    """

    profile: OptimizerProfile = "fast"
    max_memory_mb: Annotated[int, Field(ge=600)] = _DEFAULT_SAMPLER_MEMORY_MB

    @model_validator(mode="after")
    def _validate_memory(self) -> Self:
        if self.profile == "random" and self.max_memory_mb != _DEFAULT_SAMPLER_MEMORY_MB:
            raise FieldError("max_memory_mb", "profile random has no process to limit")
        return self


class SweepControl(ConfigModel):
    """The `sweep:` block: how long and how widely to search.

    Attributes:
        min_improvement: the part of the best value, or of the hypervolume, by which it has to grow
            to count as better for `patience`.
    """

    max_rounds: Annotated[int, Field(ge=1)] = 20
    parallel_evals: Annotated[int, Field(ge=1)] = 16
    candidates_per_round: Annotated[int, Field(ge=1)] | None = None
    random_seed: Annotated[int, Field(ge=0, lt=2**31)] = 1
    max_eval_seconds: Annotated[float, Field(gt=0)] | None = None
    suggest_timeout_seconds: Annotated[float, Field(gt=0)] = _SUGGEST_TIMEOUT
    schedule: Schedule = "continuous"
    optimizer: OptimizerSettings = Field(default_factory=OptimizerSettings)
    warm_start: bool = True
    max_seconds: Annotated[float, Field(gt=0)] | None = None
    patience: Annotated[int, Field(ge=1)] | None = None
    min_improvement: Annotated[float, Field(ge=0)] = 0.0

    @model_validator(mode="after")
    def _validate_limits(self) -> Self:
        if self.optimizer.profile == "random" and self.suggest_timeout_seconds != _SUGGEST_TIMEOUT:
            raise FieldError("suggest_timeout_seconds", "profile random takes no time to limit")
        if self.min_improvement and self.patience is None:
            raise FieldError("min_improvement", "has no effect without patience")
        return self

    @property
    def per_round(self) -> int:
        """Unique successes that each round of a branch asks for."""
        return self.candidates_per_round or self.parallel_evals


def _baseline(value: object) -> object:
    return value if value == "default" else pinned_config(value, other="default")


Baseline = Annotated[Literal["default"] | PinnedConfig, BeforeValidator(_baseline)]
"""Parallel shapes with their replicas, or those that Dynamo's own generator would deploy."""


class SmartSearchConfig(ConfigModel):
    """One sweep: a search space, a workload, a goal and the sweep's limits.

    Attributes:
        baseline: what every candidate is held against.
    """

    search_space: SearchSpace
    workload: Workload
    goal: OptimizationGoal = Field(default_factory=OptimizationGoal)
    sweep: SweepControl = Field(default_factory=SweepControl)
    confirm: Confirm = Field(default_factory=Confirm)
    baseline: Baseline | None = None

    @property
    def kv_load(self) -> float | tuple[float, float] | None:
        """The KV load: one ratio, a range to search, or None for every other workload.

        A synthetic Pareto workload without any load field is swept over the whole capacity.
        """
        ratio = self.workload.kv_load_ratio
        if isinstance(ratio, list):
            return (ratio[0], ratio[1])
        if ratio is None and not self.workload.is_trace and self.workload.load_field is None:
            return DEFAULT_KV_LOAD_RANGE
        return ratio

    @model_validator(mode="after")
    def _validate_robust(self) -> Self:
        if self.goal.robust and (self.confirm.enabled == "off" or not self.confirm.other_loads):
            raise FieldError("goal.robust", "needs confirm.loads other than 1.0 to be measured")
        return self

    @model_validator(mode="after")
    def _validate_baseline(self) -> Self:
        if self.baseline is None:
            return self
        if isinstance(self.kv_load, tuple):
            raise FieldError("baseline", "needs one load: give workload.kv_load_ratio one number")
        space = self.search_space
        is_pair = isinstance(self.baseline, PinnedPair)
        if is_pair and space.prefill_block_size != space.decode_block_size:
            raise FieldError(
                "search_space.decode_block_size",
                f"must be {space.prefill_block_size} as prefill_block_size: the baseline hands"
                " blocks over",
            )
        return self

    @model_validator(mode="after")
    def _validate_load(self) -> Self:
        workload = self.workload
        if workload.kv_load_range is not None and not self.goal.is_pareto:
            raise FieldError(
                "workload.kv_load_ratio",
                f"a range needs goal.target: pareto; under {self.goal.target} give one number",
            )
        if not workload.is_trace and workload.load_field is None and not self.goal.is_pareto:
            raise FieldError(f"workload.{LOAD_FIELDS[0]}", f"set one of {', '.join(LOAD_FIELDS)}")
        return self

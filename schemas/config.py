"""`SmartSearchConfig`: everything one sweep is asked to do."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from schemas.base import ConfigModel, FieldError
from schemas.goal import OptimizationGoal, OptimizationTarget
from schemas.search_space import SearchSpace
from schemas.workload import LOAD_FIELDS, Workload

DEFAULT_KV_LOAD_RANGE = (0.0, 1.0)


class SweepControl(ConfigModel):
    """The `sweep:` block: how long and how widely to search."""

    max_rounds: Annotated[int, Field(ge=1)] = 20
    parallel_evals: Annotated[int, Field(ge=1)] = 16
    candidates_per_round: Annotated[int, Field(ge=1)] | None = None
    random_seed: Annotated[int, Field(ge=0, lt=2**31)] = 1
    max_eval_seconds: Annotated[float, Field(gt=0)] | None = None
    suggest_timeout_seconds: Annotated[float, Field(gt=0)] = 180.0

    @property
    def per_round(self) -> int:
        """Unique successes that each round of a branch asks for."""
        return self.candidates_per_round or self.parallel_evals


class SmartSearchConfig(ConfigModel):
    """One sweep: a search space, a workload, a goal and the sweep's limits."""

    search_space: SearchSpace
    workload: Workload
    goal: OptimizationGoal = Field(default_factory=OptimizationGoal)
    sweep: SweepControl = Field(default_factory=SweepControl)

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
    def _validate_load(self) -> Self:
        pareto = self.goal.target is OptimizationTarget.PARETO
        workload = self.workload
        if workload.kv_load_range is not None and not pareto:
            raise FieldError(
                "workload.kv_load_ratio",
                f"a range needs goal.target: pareto; under {self.goal.target} give one number",
            )
        if not workload.is_trace and workload.load_field is None and not pareto:
            raise FieldError(f"workload.{LOAD_FIELDS[0]}", f"set one of {', '.join(LOAD_FIELDS)}")
        return self

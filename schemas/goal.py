"""The goal of a sweep: what is better, and the service levels that a request must meet."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from schemas.base import ConfigModel, FieldError

PlannerTarget = Literal["sla", "throughput", "latency"]


class OptimizationTarget(StrEnum):
    """What a sweep optimises; `PARETO` stands for several of the others at once."""

    THROUGHPUT = "throughput"
    THROUGHPUT_PER_GPU = "throughput_per_gpu"
    THROUGHPUT_PER_USER = "throughput_per_user"
    E2E_LATENCY = "e2e_latency"
    GOODPUT = "goodput"
    GOODPUT_PER_GPU = "goodput_per_gpu"
    PARETO = "pareto"

    @property
    def maximize(self) -> bool:
        """Whether more is better.

        Raises:
            ValueError: for `PARETO`, whose objectives have a direction each.
        """
        if self is OptimizationTarget.PARETO:
            raise ValueError("pareto has no single direction: ask each of its objectives")
        return self is not OptimizationTarget.E2E_LATENCY

    @property
    def needs_sla(self) -> bool:
        """Whether the metric counts only requests that meet the SLA."""
        return self in (OptimizationTarget.GOODPUT, OptimizationTarget.GOODPUT_PER_GPU)

    @property
    def planner_optimization_target(self) -> PlannerTarget:
        """What the Dynamo Planner optimises while a candidate is replayed for this target."""
        if self.needs_sla:
            return "sla"
        return "latency" if self is OptimizationTarget.E2E_LATENCY else "throughput"


DEFAULT_PARETO_OBJECTIVES = (
    OptimizationTarget.THROUGHPUT_PER_GPU,
    OptimizationTarget.THROUGHPUT_PER_USER,
)

# YAML holds plain strings, and strict mode would ask for members of the enum.
_Target = Annotated[OptimizationTarget, Field(strict=False)]
_Milliseconds = Annotated[float, Field(gt=0)]


class SLATarget(ConfigModel):
    """Service levels of one request, in milliseconds."""

    ttft_ms: _Milliseconds | None = None
    itl_ms: _Milliseconds | None = None
    e2e_ms: _Milliseconds | None = None

    @property
    def has_token_levels(self) -> bool:
        """Whether both TTFT and ITL are given, as the planner's own SLA target needs."""
        return self.ttft_ms is not None and self.itl_ms is not None

    @property
    def supports_goodput(self) -> bool:
        """Whether goodput can be counted: an end-to-end level, or both token levels."""
        return self.e2e_ms is not None or self.has_token_levels


class OptimizationGoal(ConfigModel):
    """What "better" means. Pinned for a sweep, never searched.

    Attributes:
        robust: whether those that were measured under several loads are ranked by the worst.
    """

    target: _Target = OptimizationTarget.THROUGHPUT
    sla: SLATarget | None = None
    pareto_objectives: list[_Target] | None = None
    robust: bool = False

    @property
    def is_pareto(self) -> bool:
        """Whether there is a front in place of a ranking."""
        return self.target is OptimizationTarget.PARETO

    @property
    def objectives(self) -> tuple[OptimizationTarget, ...]:
        """The scalar targets to measure: one, or under `pareto` those listed or the default."""
        if self.is_pareto:
            return tuple(self.pareto_objectives or DEFAULT_PARETO_OBJECTIVES)
        return (self.target,)

    @model_validator(mode="after")
    def _validate_goal(self) -> Self:
        if self.robust and self.target is OptimizationTarget.PARETO:
            raise FieldError("robust", "not with target: pareto, which ranks nothing")
        listed = self.pareto_objectives
        if listed is not None:
            if not self.is_pareto:
                raise FieldError("pareto_objectives", "only legal with target: pareto")
            if OptimizationTarget.PARETO in listed:
                raise FieldError("pareto_objectives", "pareto cannot be an objective of itself")
            if len(listed) < 2 or len(set(listed)) != len(listed):
                raise FieldError("pareto_objectives", "list two or more distinct targets")
        needing = [target.value for target in self.objectives if target.needs_sla]
        if needing and (self.sla is None or not self.sla.supports_goodput):
            raise FieldError(
                "sla",
                f"{needing[0]} counts the requests that meet an SLA: "
                "set e2e_ms, or both ttft_ms and itl_ms",
            )
        return self

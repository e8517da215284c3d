"""What a confirmed deployment leaves behind: how it has behaved while it was replayed."""

from __future__ import annotations

from pydantic import Field

from schemas.base import MessageModel


class Latency(MessageModel):
    """How one latency was distributed over the requests that have it, in milliseconds."""

    count: int = Field(ge=1, description="requests")
    mean: float = Field(description="of all requests, not of the points")
    points: list[float] = Field(
        min_length=1,
        description="quantiles from the least to the greatest: of n points the i-th, from 0, is the"
        " one of i / (n - 1)",
    )


class ScalingEvent(MessageModel):
    """The planner has changed a number of replicas."""

    at_s: float
    component: str = Field(description="`agg`, `prefill` or `decode`")
    from_count: int
    to_count: int
    reason: str = ""


class Artifact(MessageModel):
    """One replay of one deployment, as small as its charts can be drawn from."""

    latencies: dict[str, Latency] = Field(
        description="`ttft_ms`, `tpot_ms` (the mean of a request's own ITLs) and `e2e_latency_ms`"
    )
    series: dict[str, list[float | None]] = Field(
        description="columns of equal length, all about the moment in `time_s` or what has happened"
        " since the one before: `gpus`, `arriving_rps`, `completed_rps`, and for each pool (`agg`,"
        " or `prefill` and `decode`) `agg.replicas` that serve, `.starting`, `.draining`,"
        " `.running` and `.waiting` requests, `.kv_usage` and `.hit_rate` as parts of 1; none:"
        " there was nothing to tell it from"
    )
    requests: dict[str, list[float]] = Field(
        default_factory=dict,
        description="`ttft_ms` and `e2e_latency_ms` of each request, in the order of arrival;"
        " empty: there are too many",
    )
    scaling: list[ScalingEvent] = Field(default_factory=list)
    scaling_count: int = Field(
        default=0, ge=0, description="how often the planner has scaled, had the list to be thinned"
    )

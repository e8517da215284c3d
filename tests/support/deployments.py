"""Two deployments that tests unroll: one aggregate and dense, one disaggregated with experts."""

from __future__ import annotations

from spica_async.space.pool import ParallelConfig, RoleDeployment
from spica_async.space.shapes import ParallelShape

DENSE = ParallelConfig((("agg", RoleDeployment(ParallelShape(2), 3)),))
PAIR = ParallelConfig(
    (
        ("prefill", RoleDeployment(ParallelShape(4, moe_ep=4), 2)),
        ("decode", RoleDeployment(ParallelShape(1, attention_dp=8, moe_ep=8), 1)),
    )
)

"""The evaluation that stands beside a measured point, as a sweep would ask for it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from schemas.messages import EvaluationRequest, Measurement, Sample, SyntheticLoad
from spica_async.accuracy.points import CellKey, Point, Replayable

SETTINGS: Final = "1"
"""Changes with whatever below changes a figure, so that none is compared with those of before."""

# The points of InferenceX, most of them, were measured over ten times their concurrency, the
# burst at the start included, with steps of this many tokens and prefix caching off:
# https://github.com/SemiAnalysisAI/InferenceX, benchmarks/.
REQUESTS_PER_SLOT: Final = 10
_BATCHED_TOKENS: Final = 8192
_ENGINE: Final = {
    "agg_max_num_batched_tokens": _BATCHED_TOKENS,
    "agg_block_size": 64,
    "agg_gpu_memory_utilization": 0.9,
    "agg_enable_prefix_caching": False,
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a replay has told of a point, in milliseconds."""

    point: Point
    ttft_ms: float
    tpot_ms: float


def replay_request(point: Point) -> EvaluationRequest:
    """The evaluation of a point's deployment under its load."""
    shape, key = point.replayable, point.cell
    concurrency = shape.concurrency
    return EvaluationRequest(
        evaluation_id=_name(key, shape),
        sweep_id="accuracy",
        sample=_sample(point),
        load=SyntheticLoad(
            isl=shape.isl,
            osl=shape.osl,
            requests=REQUESTS_PER_SLOT * concurrency,
            concurrency=concurrency,
        ),
    )


def comparison(point: Point, measurement: Measurement) -> Comparison | str:
    """What a measurement tells of its point, or in one line why it tells nothing."""
    report = measurement.report
    if report is None:
        return f"{measurement.outcome}: {measurement.cause}: {measurement.detail}"
    return Comparison(point, report["mean_ttft_ms"], report["mean_tpot_ms"])


def _sample(point: Point) -> Sample:
    shape, key = point.replayable, point.cell
    gpus = shape.tp * shape.attention_dp
    return {
        "deployment_mode": "agg",
        "model_name": key.model,
        "hardware_sku": key.hardware_sku,
        "backend": key.backend,
        "is_moe": point.is_moe,
        "tp": shape.tp,
        "pp": 1,
        "attention_dp": shape.attention_dp,
        "moe_tp": shape.moe_tp,
        "moe_ep": shape.moe_ep,
        "replicas": 1,
        "used_gpus": gpus,
        "gpu_budget": gpus,
        "num_g2_blocks": 0,
        "router_mode": "round_robin",
        "planner_scaling_policy": "disabled",
        "enable_throughput_scaling": False,
        "enable_load_scaling": False,
        # No request waits for another to end.
        "agg_max_num_seqs": shape.concurrency,
        **_ENGINE,
    }


def _name(key: CellKey, shape: Replayable) -> str:
    sizes = (shape.tp, shape.attention_dp, shape.moe_tp, shape.moe_ep)
    load = f"{shape.isl}x{shape.osl}x{shape.concurrency}"
    return "/".join((*key, "-".join(map(str, sizes)), load))

"""Replays that show which settings the engine hears, and which it does not.

A setting is heard when a metric under its second value lies farther from three repeats under its
first value than these differ among themselves. Where no router draws lots, one replay stands for
the three. Each load was chosen so that the setting bites.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from support.engine_samples import (
    KV_ROUTER,
    OFFLOAD,
    OFFLOAD_WEIGHTS,
    SLA,
    agg,
    conversation_trace,
    disagg,
    first_requests,
    minimax,
    request,
    scaled,
    shape,
    synthetic,
    trace,
)

from schemas.goal import SLATarget
from schemas.messages import Load, Sample
from spica_async.engine.capability import ignored_knobs, unread_planner_knobs
from spica_async.engine.evaluation import evaluate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

E2E = "mean_e2e_latency_ms"
GPU_HOURS = "gpu_hours"
ON, OFF = True, False
BACKENDS = ("vllm", "sglang", "trtllm")
SHARED_PREFIXES = {"isl": 4000, "osl": 32, "shared_prefix_ratio": 0.8}
SYNTHETIC: Mapping[str, Load] = {
    "long prompts": synthetic(isl=4000, osl=16, requests=300, concurrency=64),
    "long outputs": synthetic(isl=4000, osl=256, requests=150, concurrency=64),
    "many in flight": synthetic(isl=64, osl=128, requests=2500, concurrency=1200),
    "tiny prompts": synthetic(isl=16, osl=4, requests=2400, concurrency=1600),
    "few prefixes": synthetic(
        **SHARED_PREFIXES, requests=300, concurrency=32, num_prefix_groups=32
    ),
    "many prefixes": synthetic(
        **SHARED_PREFIXES, requests=1200, concurrency=16, num_prefix_groups=200
    ),
}
# Requests of the published trace, and how many are in flight; none: an open loop.
TRACES: Mapping[str, tuple[int, int | None]] = {
    "chat": (1000, 32),
    "a few minutes": (1000, None),
    "some minutes": (1500, None),
    "a quarter of an hour": (3000, None),
}


@dataclass(frozen=True)
class Case:
    sample: Sample
    knob: str
    first: Any
    second: Any
    load: str
    metric: str = E2E
    sla: SLATarget | None = None

    def __str__(self) -> str:
        where = f"{self.sample['backend']}-{self.sample['deployment_mode']}"
        policy = self.sample["planner_scaling_policy"]
        return f"{self.knob}-{self.first}-{self.second}-{where}-{policy}"


def _steps(knob: str, values: list[Any]) -> list[tuple[str, Any, Any]]:
    return [(knob, one, other) for one, other in pairwise(values)]


def _engine_cases(backend: str) -> list[Case]:
    low_memory = 0.2 if backend == "trtllm" else 0.6
    one = agg(backend=backend, **shape(tp=2))
    small = agg(backend=backend, **shape(), agg_gpu_memory_utilization=low_memory)
    prefill = disagg(backend=backend, prefill_replicas=1, decode_tp=4)
    small_prefill = {**prefill, "prefill_tp": 1, "prefill_gpu_memory_utilization": low_memory}
    decode = disagg(backend=backend, decode_tp=2)
    small_decode = {
        **decode,
        "prefill_replicas": 4,
        "decode_tp": 1,
        "decode_gpu_memory_utilization": low_memory,
    }
    wide = {**prefill, "prefill_max_num_batched_tokens": 16_384}
    batches, seqs = [8192, 16_384, 32_768], [256, 512, 1024]
    return [
        *(Case(one, *s, "long prompts") for s in _steps("agg_max_num_batched_tokens", batches)),
        *(Case(one, *s, "many in flight") for s in _steps("agg_max_num_seqs", seqs)),
        *(
            Case(prefill, *s, "long prompts")
            for s in _steps("prefill_max_num_batched_tokens", batches)
        ),
        *(
            Case(wide, *s, "tiny prompts")
            for s in _steps("prefill_max_num_seqs", [1, 2, 4, 8, 16, 32, 64, 128, 256])
        ),
        *(Case(decode, *s, "many in flight") for s in _steps("decode_max_num_seqs", seqs)),
        Case(small, "agg_block_size", 64, 1024, "few prefixes"),
        Case(small, "agg_gpu_memory_utilization", low_memory, 0.9, "few prefixes"),
        Case(small_prefill, "prefill_gpu_memory_utilization", low_memory, 0.9, "few prefixes"),
        Case(small_decode, "decode_gpu_memory_utilization", low_memory, 0.9, "long outputs"),
        Case(one, "agg_enable_prefix_caching", ON, OFF, "few prefixes"),
        Case(prefill, "prefill_enable_prefix_caching", ON, OFF, "few prefixes"),
        Case(one, "aic_nextn", None, 2, "long outputs"),
        Case(prefill, "aic_nextn", None, 2, "long outputs"),
    ]


ROUTED = minimax(replicas=4, **KV_ROUTER)
OFFLOADED = agg(
    **shape(replicas=4),
    agg_gpu_memory_utilization=0.6,
    **{**KV_ROUTER, **OFFLOAD, **OFFLOAD_WEIGHTS, "prefill_load_scale": 2.0},
)
HOST = {**OFFLOADED, "router_mode": "round_robin"}
ROUTER_CASES = [
    Case(ROUTED, "router_mode", "kv_router", "round_robin", "chat"),
    Case(ROUTED, "overlap_score_credit", 1.0, 0.0, "chat"),
    Case(ROUTED, "prefill_load_scale", 0.0, 4.0, "chat"),
    Case(ROUTED, "prefill_load_scale", 0.25, 8.0, "chat", "mean_ttft_ms"),
    Case(ROUTED, "router_temperature", 0.0, 0.5, "chat"),
    Case(ROUTED, "router_temperature", 0.0, 1.0, "chat"),
    Case(OFFLOADED, "host_cache_hit_weight", 0.5, 1.0, "many prefixes"),
]
OFFLOAD_CASES = [
    Case(HOST, "num_g2_blocks", 0, 20_000, "many prefixes"),
    Case(HOST, "kv_bytes_per_token", 131_072, 1_310_720, "many prefixes"),
    Case(HOST, "bandwidth_g1_to_g2_gbps", 50.0, 0.5, "many prefixes"),
    Case(HOST, "bandwidth_g2_to_g1_gbps", 50.0, 0.5, "many prefixes"),
]

TIGHT = SLATarget(ttft_ms=1000, itl_ms=20)
TIGHTER = SLATarget(ttft_ms=2000, itl_ms=12)
LOAD = minimax(**scaled("load_180_5"))
THROUGHPUT = minimax(**scaled("throughput_180_5"))
HYBRID = minimax(**scaled("hybrid_180_5"))
EACH_MINUTE = {**THROUGHPUT, "throughput_adjustment_interval_seconds": 60}
KALMAN = {**EACH_MINUTE, "load_predictor": "kalman"}
PREFILL_SCALED = disagg(prefill_replicas=3, gpu_budget=16, **scaled("load_180_5", "throughput"))
PLANNER_CASES = [
    Case(LOAD, "enable_load_scaling", ON, OFF, "some minutes", GPU_HOURS, TIGHT),
    Case(HYBRID, "enable_load_scaling", ON, OFF, "a quarter of an hour", GPU_HOURS, SLA),
    Case(
        {**HYBRID, "throughput_adjustment_interval_seconds": 60},
        "enable_throughput_scaling",
        ON,
        OFF,
        "some minutes",
        GPU_HOURS,
        TIGHT,
    ),
    *(
        Case(sample, knob, first, second, "a quarter of an hour", GPU_HOURS, SLA)
        for sample, knob, first, second in (
            (LOAD, "max_num_fpm_samples", 32, 64),
            (LOAD, "max_num_fpm_samples", 64, 128),
            (LOAD, "load_adjustment_interval_seconds", 5, 10),
            (THROUGHPUT, "load_adjustment_interval_seconds", 5, 10),
            (THROUGHPUT, "throughput_adjustment_interval_seconds", 180, 600),
            (THROUGHPUT, "min_endpoint", None, 6),
            (THROUGHPUT, "min_gpu_budget", None, 24),
        )
    ),
    Case(LOAD, "load_scaling_down_sensitivity", 70, 80, "some minutes", GPU_HOURS, TIGHTER),
    Case(LOAD, "startup_time", None, 120.0, "some minutes", GPU_HOURS, TIGHT),
    Case(LOAD, "gpu_budget", 32, 64, "some minutes", GPU_HOURS, TIGHT),
    Case(EACH_MINUTE, "load_predictor", "constant", "kalman", "some minutes", GPU_HOURS, TIGHT),
    Case(KALMAN, "kalman_min_points", 5, 3, "some minutes", GPU_HOURS, TIGHT),
    Case(EACH_MINUTE, "load_min_observations", 1, 30, "some minutes", GPU_HOURS, TIGHT),
    Case(PREFILL_SCALED, "context_length", None, 131_072, "a few minutes"),
]
HEARD = [
    *(case for backend in BACKENDS for case in _engine_cases(backend)),
    *ROUTER_CASES,
    *OFFLOAD_CASES,
    *PLANNER_CASES,
]

ROUND_ROBIN = [
    # A decode worker receives its blocks from prefill and has no prefixes of its own.
    *(
        Case(disagg(backend=backend), "decode_enable_prefix_caching", OFF, ON, "few prefixes")
        for backend in BACKENDS
    ),
    # A decode worker's steps are as wide as its sequences are many.
    Case(disagg(decode_tp=2), "decode_max_num_batched_tokens", 8192, 16_384, "many in flight"),
]
LOOPS_APART = [
    Case(THROUGHPUT, "max_num_fpm_samples", 32, 128, "some minutes", GPU_HOURS, TIGHT),
    Case(THROUGHPUT, "load_scaling_down_sensitivity", 70, 90, "some minutes", GPU_HOURS, TIGHT),
    Case(THROUGHPUT, "load_min_observations", 3, 8, "some minutes", GPU_HOURS, TIGHT),
    Case(
        LOAD, "throughput_adjustment_interval_seconds", 180, 600, "some minutes", GPU_HOURS, TIGHT
    ),
    # The performance data seed the planner, so that it need not wait for observations.
    Case(LOAD, "load_min_observations", 3, 8, "some minutes", GPU_HOURS, TIGHT),
]
WITHOUT_SLA = [
    Case(minimax(**scaled("load_180_5", target)), knob, first, second, "some minutes", GPU_HOURS)
    for target in ("throughput", "latency")
    for knob, first, second in (
        ("load_scaling_down_sensitivity", 10, 99),
        ("load_min_observations", 1, 30),
        ("max_num_fpm_samples", 32, 128),
        ("fpm_sample_bucket_size", 4, 64),
    )
]
NOT_HEARD = [
    *ROUND_ROBIN,
    Case(OFFLOADED, "disk_cache_hit_weight", 0.0, 0.5, "many prefixes"),
    *LOOPS_APART,
    *WITHOUT_SLA,
]


def _draws_lots(case: Case) -> bool:
    return "kv_router" in {case.sample["router_mode"], case.first}


class Replays:
    """Replays by sample and load; what several cases share is replayed once."""

    def __init__(self, loads: Mapping[str, Load]) -> None:
        self._loads = loads
        self._done: dict[str, list[dict[str, float]]] = {}

    def metrics(self, case: Case, value: Any, count: int) -> list[float]:
        sample = {**case.sample, case.knob: value}
        if value is None:
            del sample[case.knob]
        reports = self.reports(sample, case.load, case.sla, count)
        return [report[case.metric] for report in reports]

    def reports(
        self, sample: Sample, load: str, sla: SLATarget | None, count: int
    ) -> list[dict[str, float]]:
        key = json.dumps([sample, load, sla and sla.model_dump()], sort_keys=True)
        done = self._done.setdefault(key, [])
        while len(done) < count:
            measured = evaluate(request(sample, self._loads[load], sla))
            assert measured.report is not None, measured.detail
            done.append(measured.report)
        return done[:count]

    def distance_and_spread(self, case: Case) -> tuple[float, float]:
        """How far the second value's metric lies from the first's, and these from each other."""
        count = 3 if _draws_lots(case) else 1
        repeats = self.metrics(case, case.first, count)
        (other,) = self.metrics(case, case.second, 1)
        nearest = min(abs(other - repeat) for repeat in repeats)
        return nearest, max(repeats) - min(repeats)


@pytest.fixture(scope="module")
def replays(tmp_path_factory: pytest.TempPathFactory) -> Replays:
    source, folder = conversation_trace(), tmp_path_factory.mktemp("traces")
    loads = dict(SYNTHETIC)
    for name, (count, concurrency) in TRACES.items():
        loads[name] = trace(first_requests(source, count, folder), concurrency=concurrency)
    return Replays(loads)


@pytest.mark.parametrize(
    ("sample", "load", "sla"),
    [
        (disagg(), "long prompts", None),
        (HYBRID, "a few minutes", TIGHT),
        (PREFILL_SCALED, "a few minutes", None),
    ],
    ids=["disagg", "planner", "planner without an SLA"],
)
def test_round_robin_replays_alike(
    replays: Replays, sample: Sample, load: str, sla: SLATarget | None
) -> None:
    first, second = replays.reports(sample, load, sla, 2)
    assert first == second


@pytest.mark.parametrize("case", HEARD, ids=str)
def test_the_engine_hears(replays: Replays, case: Case) -> None:
    distance, spread = replays.distance_and_spread(case)
    assert distance > spread


@pytest.mark.parametrize("case", NOT_HEARD, ids=str)
def test_the_engine_does_not_hear(replays: Replays, case: Case) -> None:
    distance, spread = replays.distance_and_spread(case)
    # Where ties between workers are broken at random, four replays lie anyhow: allow for it.
    assert distance <= 3 * spread


def test_the_table_of_ignored_knobs_names_what_no_replay_heard() -> None:
    assert set(ignored_knobs("vllm")) == {"disk_cache_hit_weight"}
    # Offload is refused for these two, so that nothing is ever found on a host.
    for backend in ("sglang", "trtllm"):
        assert set(ignored_knobs(backend)) == {
            "disk_cache_hit_weight",
            "host_cache_hit_weight",
        }
    assert set(unread_planner_knobs("latency")) == {
        "planner_fpm_sampling",
        "planner_load_sensitivity",
    }

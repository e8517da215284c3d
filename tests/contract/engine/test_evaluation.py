"""What a replay reports, and what becomes of one that fails."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from support.engine_samples import (
    KV_ROUTER,
    OFFLOAD,
    SLA,
    agg,
    disagg,
    minimax,
    request,
    scaled,
    shape,
    synthetic,
    trace,
)

from schemas.messages import Sample
from spica_async.engine import evaluation
from spica_async.engine.evaluation import evaluate, flatten

SMALL = synthetic(requests=20)
ALWAYS = {
    "output_throughput_tok_s",
    "request_throughput_rps",
    "mean_output_token_throughput_per_user",
    "gpu_hours",
    "duration_ms",
    "num_requests",
    "completed_requests",
    "prefix_cache_reused_ratio",
    *(
        f"{statistic}_{latency}_ms"
        for statistic in ("mean", "median", "p90", "p95", "p99")
        for latency in ("ttft", "itl", "tpot", "e2e_latency")
    ),
}
UNDER_AN_SLA = {
    "goodput_output_throughput_tok_s",
    "goodput_request_throughput_rps",
    "goodput_completed_requests",
}


@pytest.fixture
def steady(tmp_path: Path) -> Path:
    path = tmp_path / "steady.jsonl"
    rows = [
        {"timestamp": 1000 * i, "input_length": 1000, "output_length": 20, "hash_ids": [0, i + 1]}
        for i in range(120)
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


@pytest.mark.parametrize(
    "sample",
    [
        agg(),
        disagg(),
        agg(backend="sglang"),
        disagg(backend="trtllm"),
        minimax(**shape(attention_dp=4, moe_ep=4, replicas=2)),
    ],
    ids=["agg", "disagg", "sglang", "trtllm disagg", "attention dp"],
)
def test_a_static_report_counts_all_gpus_all_the_time(sample: Sample) -> None:
    measured = evaluate(request(sample, SMALL, SLA))
    assert (measured.outcome, measured.cause, measured.detail) == ("feasible", None, None)
    report = measured.report
    assert report is not None
    assert set(report) >= ALWAYS | UNDER_AN_SLA
    assert all(math.isfinite(value) for value in report.values())
    assert "planner_total_ticks" not in report
    mean_gpus = report["gpu_hours"] * 3_600_000 / report["duration_ms"]
    assert mean_gpus == pytest.approx(sample["used_gpus"])


def test_without_an_sla_no_goodput_is_reported() -> None:
    report = evaluate(request(agg(), SMALL)).report
    assert report is not None
    assert not UNDER_AN_SLA & set(report)


def test_round_robin_replays_alike_to_the_last_digit() -> None:
    first, second = (evaluate(request(agg(), SMALL)).report for _ in range(2))
    assert first == second


def test_each_turn_of_a_session_is_a_request() -> None:
    report = evaluate(request(agg(), synthetic(requests=5, turns_per_session=4))).report
    assert report is not None
    assert report["num_requests"] == report["completed_requests"] == 20


def test_an_open_loop_arrives_at_its_rate() -> None:
    load = synthetic(requests=41, concurrency=None, request_rate=2.0, osl=2)
    report = evaluate(request(agg(), load)).report
    assert report is not None
    assert report["duration_ms"] == pytest.approx(20_000, rel=0.02)


def test_a_trace_is_replayed_open_by_its_times_or_closed_without_them(steady: Path) -> None:
    def duration(**loop: Any) -> float:
        report = evaluate(request(agg(), trace(steady, **loop))).report
        assert report is not None
        return report["duration_ms"]

    as_recorded = duration()
    assert as_recorded == pytest.approx(119_000, rel=0.05)
    assert duration(arrival_speedup_ratio=2.0) == pytest.approx(as_recorded / 2, rel=0.05)
    assert duration(concurrency=120) < as_recorded / 3


def test_a_planner_run_counts_the_gpus_that_it_provisions(steady: Path) -> None:
    sample = agg(**shape(tp=1, replicas=4), **scaled("load_180_5", "throughput"))
    report = evaluate(request(sample, trace(steady))).report
    assert report is not None
    assert report["planner_total_ticks"] >= 4
    mean_gpus = report["gpu_hours"] * 3_600_000 / report["duration_ms"]
    assert 1 <= mean_gpus < 2


def test_the_kv_router_writes_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert evaluate(request(agg(**KV_ROUTER), SMALL)).outcome == "feasible"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("sample", "isl", "detail"),
    [
        (agg(context_length=1000), 1024, "4 of 4 requests are longer"),
        (agg(), 2_000_000, "4 of 4 requests are longer"),
        (agg(context_length=1100), 1024, f"{4 * (1024 + 128 - 1100)} output tokens"),
    ],
    ids=["input over the context", "input over the cache", "output over the context"],
)
def test_a_load_that_the_engine_cuts_makes_a_candidate_infeasible(
    sample: Sample, isl: int, detail: str
) -> None:
    measured = evaluate(request(sample, synthetic(requests=4, isl=isl)))
    assert (measured.outcome, measured.cause) == ("infeasible", "no_kv_room")
    assert measured.report is None
    assert detail in str(measured.detail)


def test_a_load_of_exactly_the_context_length_fits() -> None:
    measured = evaluate(request(agg(context_length=1152), synthetic(requests=4)))
    assert measured.outcome == "feasible"


@pytest.mark.parametrize(
    ("overrides", "outcome", "cause", "phrase"),
    [
        (
            {"model_name": "meta-llama/Meta-Llama-3.1-405B", **shape()},
            "infeasible",
            "no_kv_room",
            "no KV budget",
        ),
        ({**shape(tp=3)}, "failed", "build_error", "divisible by"),
        ({"agg_block_size": 1}, "failed", "build_error", "block_size"),
        ({"router_mode": "guess"}, "failed", "replay_error", "guess"),
        ({"backend": "sglang", **OFFLOAD}, "unsupported", "engine_unsupported", "offload"),
        ({"aic_nextn": 1, **OFFLOAD}, "unsupported", "engine_unsupported", "aic_nextn"),
        ({**scaled("load_180_5")}, "failed", "build_error", "ttft_ms and itl_ms"),
    ],
)
def test_a_fault_is_an_outcome_with_one_line(
    overrides: dict[str, Any], outcome: str, cause: str, phrase: str
) -> None:
    measured = evaluate(request(agg(**overrides), SMALL))
    assert (measured.outcome, measured.cause) == (outcome, cause)
    assert measured.report is None
    assert phrase in str(measured.detail)
    assert "\n" not in str(measured.detail)


def test_a_sample_without_a_field_is_a_build_error_that_names_it() -> None:
    sample = agg()
    del sample["tp"]
    measured = evaluate(request(sample, SMALL))
    assert (measured.outcome, measured.cause) == ("failed", "build_error")
    assert "tp" in str(measured.detail)


def test_a_trace_that_is_not_there_is_a_replay_error(steady: Path) -> None:
    load = trace(steady)
    steady.unlink()
    measured = evaluate(request(agg(), load))
    assert (measured.outcome, measured.cause) == ("failed", "replay_error")


def test_disagg_roles_with_unlike_block_sizes_are_refused_by_the_replay() -> None:
    measured = evaluate(request(disagg(decode_block_size=32), SMALL))
    assert (measured.outcome, measured.cause) == ("failed", "replay_error")
    assert "matching prefill/decode block_size" in str(measured.detail)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_fails_the_report(
    monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    report = {"num_requests": 1.0, "completed_requests": 1.0, "mean_itl_ms": value}
    monkeypatch.setattr(evaluation, "report_of", lambda *_: report)
    measured = evaluate(request(agg(), SMALL))
    assert (measured.outcome, measured.cause) == ("failed", "report_not_finite")
    assert "mean_itl_ms" in str(measured.detail)
    assert measured.report is None


def test_a_report_that_does_not_tell_what_was_served_is_incomplete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evaluation, "report_of", lambda *_: {"num_requests": 1.0})
    measured = evaluate(request(agg(), SMALL))
    assert (measured.outcome, measured.cause) == ("failed", "report_incomplete")
    assert "completed_requests" in str(measured.detail)


class PanicException(BaseException):
    """Of the name that PyO3 gives it."""


@pytest.mark.parametrize(
    ("error", "caught"), [(PanicException("boom"), True), (KeyboardInterrupt(), False)]
)
def test_a_panic_of_the_core_ends_the_replay_and_an_interrupt_the_process(
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    caught: bool,  # noqa: FBT001  # a parameter of the test
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(evaluation, "report_of", fail)
    if caught:
        measured = evaluate(request(agg(), SMALL))
        assert (measured.outcome, measured.cause) == ("failed", "replay_error")
    else:
        with pytest.raises(KeyboardInterrupt):
            evaluate(request(agg(), SMALL))


def test_a_report_is_numbers_under_dotted_keys() -> None:
    summary = {
        "a": 1,
        "flag": True,
        "text": "lru",
        "gap": None,
        "wall_time_ms": 5.0,
        "nested": {"b": 2.5, "deeper": {"c": 3}},
        "list": [1, 2],
    }
    assert dict(flatten(summary)) == {"a": 1.0, "nested.b": 2.5, "nested.deeper.c": 3.0}

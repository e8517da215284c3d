"""The steady part of real replays, against their whole and against longer ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from support.engine_samples import SLA, agg, disagg, request, synthetic

from schemas.messages import Sample
from spica_async.engine import runtime
from spica_async.engine.evaluation import evaluate, flatten, replay_arguments
from spica_async.engine.steady import Served, goodput, latencies, rates


def captured(sample: Sample, osl: int) -> tuple[dict[str, float], list[Mapping[str, Any]]]:
    """The report of a replay, and each of its requests."""
    arguments = replay_arguments(sample, SLA) | {"capture_per_request": True}
    api = runtime.load("dynamo.replay.api")
    result = api.run_synthetic_trace_replay(500, osl, 48, replay_concurrency=8, **arguments)
    return dict(flatten(result.summary)), list(result.per_request)


@pytest.mark.parametrize("sample", [agg(), disagg()], ids=["agg", "disagg"])
@pytest.mark.parametrize("osl", [1, 20])
def test_of_the_whole_run_it_is_what_the_engine_reports(sample: Sample, osl: int) -> None:
    report, per_request = captured(sample, osl)
    served = [Served.of(one) for one in per_request]
    whole = latencies(served) | rates(served, 0.0, report["duration_ms"])
    whole |= goodput(whole, settled=served, sla=SLA)
    assert whole == pytest.approx({name: report[name] for name in whole})


@pytest.mark.parametrize("sample", [agg(), disagg()], ids=["agg", "disagg"])
def test_a_steady_report_has_the_whole_run_s_beside_it(sample: Sample) -> None:
    load = synthetic(requests=40, concurrency=4)
    whole = evaluate(request(sample, load, SLA)).report
    steady_load = load.model_copy(update={"window": "steady"})
    steady = evaluate(request(sample, steady_load, SLA)).report
    assert whole is not None
    assert steady is not None
    kept = {name.removeprefix("whole."): steady[name] for name in steady if "whole." in name}
    assert {name: steady[name] for name in whole if name not in kept} | kept == whole
    assert {"output_throughput_tok_s", "mean_ttft_ms", "goodput_output_throughput_tok_s"} <= set(
        kept
    )

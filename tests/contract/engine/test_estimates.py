"""Estimated steps against what replays of a lone worker measure."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.engine_samples import agg, minimax, request, shape

from schemas.messages import Sample, SyntheticLoad
from spica_async.engine.estimates import Steps, StepTimes, step_times
from spica_async.engine.evaluation import evaluate

STEPS = Steps(isl=1024, cached=0, context=1088, prefill_batches=(1, 4), decode_batches=(1, 8))


def times_of(sample: Sample, steps: Steps = STEPS) -> StepTimes:
    (found,) = step_times([(sample, "agg")], steps)
    assert isinstance(found, StepTimes), found
    return found


@pytest.mark.parametrize("backend", ["vllm", "sglang", "trtllm"])
def test_a_lone_request_takes_its_estimated_steps(backend: str) -> None:
    sample = agg(backend=backend)
    load = SyntheticLoad(isl=STEPS.isl, osl=128, requests=4, concurrency=1)
    report = evaluate(request(sample, load)).report
    assert report is not None
    found = times_of(sample)
    assert report["mean_ttft_ms"] == pytest.approx(found.prefill_ms[0], rel=0.05)
    assert report["mean_itl_ms"] == pytest.approx(found.decode_ms[0], rel=0.05)


def test_cached_tokens_are_not_prefilled() -> None:
    whole = times_of(agg())
    most = times_of(agg(), replace(STEPS, cached=896))
    assert most.prefill_ms[0] < whole.prefill_ms[0] / 3
    assert most.decode_ms == whole.decode_ms


def test_each_worker_has_its_own_answer_in_the_order_asked() -> None:
    impossible = minimax(**shape(tp=8, moe_tp=8))
    samples = [
        agg(**shape(tp=4)),
        impossible,
        agg(**shape(tp=1)),
        minimax(**shape(attention_dp=4, moe_ep=4)),
        minimax(**shape(tp=4, moe_ep=4)),
    ]
    four, none, one, dep, tep = step_times([(sample, "agg") for sample in samples], STEPS)
    assert isinstance(none, str)
    assert none
    for found in (four, one, dep, tep):
        assert isinstance(found, StepTimes)
        # More at once takes longer, but not as much longer.
        assert found.prefill_ms[0] < found.prefill_ms[1] < 4.5 * found.prefill_ms[0]
        assert found.decode_ms[0] < found.decode_ms[1] < 8 * found.decode_ms[0]
    assert isinstance(four, StepTimes)
    assert isinstance(one, StepTimes)
    assert four.decode_ms[0] < one.decode_ms[0]
    # A batch is that of one rank: each of the four has a prompt of its own.
    assert isinstance(dep, StepTimes)
    assert isinstance(tep, StepTimes)
    assert dep.prefill_ms[0] > tep.prefill_ms[0]

"""What deployments would do, against loads that can be worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.goal import OptimizationTarget, SLATarget
from spica_async.plan.steady_state import (
    ClosedLoop,
    Numbers,
    OpenLoop,
    Performance,
    StepTable,
    Workers,
    aggregated,
    disaggregated,
)

# A prompt takes 10 ms, also beside others; a decode step takes 4 ms and 1 ms for each request.
TABLE = StepTable(
    prefill_batches=np.array([1.0, 2.0, 8.0]),
    prefill_ms=np.array([[10.0, 20.0, 80.0]]),
    decode_batches=np.array([1.0, 4.0, 64.0]),
    decode_ms=np.array([[5.0, 8.0, 68.0]]),
)


def numbers(*values: float) -> Numbers:
    return np.array(values, dtype=np.float64)


def workers(*ranks: float, prefilled: float = 8, decoded: float = 64) -> Workers:
    return Workers(
        table=TABLE,
        kind=np.zeros(len(ranks), dtype=np.intp),
        ranks=numbers(*ranks),
        most_prefilled=np.full(len(ranks), prefilled),
        most_decoded=np.full(len(ranks), decoded),
    )


def closed(concurrency: float, *, osl: int = 10, waves: float = 1e9) -> ClosedLoop:
    return ClosedLoop(osl, numbers(concurrency), waves)


def only(values: Numbers) -> float:
    (value,) = values
    return float(value)


def test_steps_between_known_batches_lie_between_their_times() -> None:
    all_at_once = workers(1, 1, 1, 1)
    found = all_at_once.decode_ms(numbers(1, 3, 34, 1000))
    assert found.tolist() == [5, 7, 38, 68]
    assert workers(1, prefilled=4).prefill_ms(numbers(100)).tolist() == [40]


def test_an_aggregated_rank_prefills_and_decodes_by_turns() -> None:
    found = aggregated(workers(1), closed(6))
    # Six prompts and ten steps of six; a prompt ends with the five that it is prefilled with.
    assert only(found.e2e_ms) == pytest.approx(6 * 10 + 10 * 10)
    assert only(found.tokens_per_s) == pytest.approx(1000 * 10 * 6 / 160)
    assert only(found.ttft_ms) == pytest.approx(60)
    assert only(found.tpot_ms) == pytest.approx(10)
    assert only(found.step_ms) == pytest.approx(10)


def test_what_a_rank_cannot_hold_waits() -> None:
    full = aggregated(workers(1, decoded=6), closed(6))
    over = aggregated(workers(1, decoded=6), closed(24))
    assert over.tokens_per_s.tolist() == full.tokens_per_s.tolist()
    assert only(over.e2e_ms) == pytest.approx(24 / 6 * only(full.e2e_ms))
    assert only(over.ttft_ms - full.ttft_ms) == pytest.approx(18 / 6 * 160)


def test_ranks_without_a_request_are_no_use() -> None:
    few = aggregated(workers(4, 9, 400), ClosedLoop(10, numbers(4, 4, 4), 5))
    assert len(set(few.tokens_per_s.tolist())) == 1
    assert few.e2e_ms.tolist() == [60, 60, 60]


def test_only_the_first_of_many_waves_queues_for_its_prefill() -> None:
    once = aggregated(workers(1), closed(32, waves=1))
    often = aggregated(workers(1), closed(32))
    # Four groups of eight, the mean one behind one and a half others.
    assert only(once.ttft_ms) == pytest.approx(80 * 2.5)
    assert only(often.ttft_ms) == pytest.approx(80)


def test_disaggregated_phases_run_side_by_side() -> None:
    found = disaggregated(workers(1), workers(1), closed(2, osl=100))
    # Two prompts of 20 ms together; while they are prefilled the others decode.
    decoding = only(found.tpot_ms)
    assert 5 < decoding < 6
    assert only(found.e2e_ms) == pytest.approx(20 + 100 * decoding, rel=1e-3)
    assert only(found.tokens_per_s) == pytest.approx(1000 * 2 * 100 / only(found.e2e_ms), rel=1e-3)


def test_the_slower_phase_sets_the_pace() -> None:
    # A prompt every 10 ms from each prefill rank, whatever decodes.
    slow = disaggregated(workers(1, 2), workers(50, 50), ClosedLoop(10, numbers(500, 500), 5))
    assert slow.tokens_per_s.tolist() == pytest.approx([1000, 2000])
    # 64 requests decode 10 tokens in 680 ms, whatever prefills.
    full = disaggregated(workers(50, 50), workers(1, 2), ClosedLoop(10, numbers(900, 900), 5))
    assert full.tokens_per_s.tolist() == pytest.approx([1000 * 640 / 680, 2000 * 640 / 680])


def test_an_open_loop_is_served_as_it_arrives_until_it_is_too_much() -> None:
    load = OpenLoop(osl=10, per_ms=0.02, requests=1e6, regular=True)
    found = aggregated(workers(1, 4), load)
    assert found.tokens_per_s.tolist() == pytest.approx([200, 200], rel=1e-3)
    assert found.e2e_ms[0] > found.e2e_ms[1]
    much = aggregated(workers(1, decoded=6), OpenLoop(10, 1.0, 1000, regular=True))
    # Six in 160 ms and less: while six prompts are prefilled, six steps decode as well.
    assert only(much.tokens_per_s) == pytest.approx(1000 * 10 * 6 / 100, rel=0.01)
    # The mean request has half of the others' time before it, less the time to arrive.
    assert only(much.ttft_ms) == pytest.approx(1000 / 2 * (100 / 6 - 1), rel=0.01)


def test_irregular_arrivals_queue_up() -> None:
    even_load, uneven_load = (OpenLoop(10, 0.02, 1e6, regular=regular) for regular in (True, False))
    for even, uneven in (
        (aggregated(workers(1), even_load), aggregated(workers(1), uneven_load)),
        (
            disaggregated(workers(1), workers(1), even_load),
            disaggregated(workers(1), workers(1), uneven_load),
        ),
    ):
        assert only(even.ttft_ms) == pytest.approx(10)
        assert only(even.ttft_ms) < only(uneven.ttft_ms) < 20


def test_each_objective_reads_its_own_figure() -> None:
    found = Performance(
        tokens_per_s=numbers(100, 100),
        ttft_ms=numbers(40, 400),
        least_ttft_ms=numbers(20, 20),
        tpot_ms=numbers(10, 10),
        step_ms=numbers(8, 8),
        e2e_ms=numbers(500, 900),
    )
    gpus = numbers(2, 4)
    values = {
        target: found.objective(target, gpus, SLATarget(ttft_ms=50, itl_ms=20)).tolist()
        for target in OptimizationTarget
        if target is not OptimizationTarget.PARETO
    }
    per_user = values.pop(OptimizationTarget.THROUGHPUT_PER_USER)
    assert per_user == [125, 125]
    assert values == {
        OptimizationTarget.THROUGHPUT: [100, 100],
        OptimizationTarget.THROUGHPUT_PER_GPU: [50, 25],
        OptimizationTarget.E2E_LATENCY: [-500, -900],
        # TTFT from 20 to 60 ms, three quarters within; and from 20 to 780 ms.
        OptimizationTarget.GOODPUT: pytest.approx([75, 100 * 30 / 760]),
        OptimizationTarget.GOODPUT_PER_GPU: pytest.approx([37.5, 25 * 30 / 760]),
    }
    with pytest.raises(ValueError, match="pareto"):
        found.objective(OptimizationTarget.PARETO, gpus, None)


def test_hopeless_deployments_are_still_distinguished() -> None:
    load = closed(6)
    fast, slow = aggregated(workers(2), load), aggregated(workers(1), load)
    level = SLATarget(e2e_ms=1)
    ones = numbers(1)
    goodput = [
        only(found.objective(OptimizationTarget.GOODPUT, ones, level)) for found in (fast, slow)
    ]
    assert 0 < goodput[1] < goodput[0] < 1


@given(st.floats(1, 512), st.integers(1, 40), st.integers(1, 40), st.integers(1, 500))
def test_more_ranks_never_serve_fewer_tokens(
    concurrency: float, ranks: int, more: int, osl: int
) -> None:
    load = ClosedLoop(osl, np.full(2, concurrency), 5)
    few_and_many = workers(ranks, ranks + more)
    both = aggregated(few_and_many, load)
    assert both.tokens_per_s[1] >= both.tokens_per_s[0] * (1 - 1e-9)
    decode = disaggregated(workers(ranks, ranks), few_and_many, load)
    # A fixed point that is approached from both sides.
    assert decode.tokens_per_s[1] >= decode.tokens_per_s[0] * (1 - 1e-2)
    for found in (both, decode):
        assert np.isfinite(found.tokens_per_s).all()
        assert (found.ttft_ms > 0).all()
        assert (found.e2e_ms >= found.ttft_ms * (1 - 1e-9)).all()

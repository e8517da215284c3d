"""Which rows of the engine's table are points, and which of them are replayed."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.silicon import MOE, measured_at, points_at, table

from spica_async.accuracy.points import (
    CellKey,
    Replayable,
    difference,
    nearest,
    read_points,
    spread,
)

H100 = CellKey("Qwen/Qwen3-32B", "h100_sxm", "vllm")
UNKNOWN = "of a model in a precision that the engine has no configuration of"
CELLS = [
    H100,
    CellKey("Qwen/Qwen3-32B", "gb200", "trtllm"),
    CellKey("Qwen/Qwen3-32B", "h100_sxm", "sglang"),
    CellKey("MiniMaxAI/MiniMax-M2.5", "h200_sxm", "vllm"),
]


def test_a_row_is_a_point() -> None:
    [point] = read_points(table({})).points
    assert point.cell == H100
    assert point.replayable == Replayable(1024, 128, 2, 1, 1, 1, 8)
    assert (point.ttft_ms, point.tpot_ms, point.is_moe) == (154.2, 18.0, False)
    assert (point.version, point.date, point.measured_as) == (
        "0.12.0",
        "2026-04-17",
        "Qwen/Qwen3-32B",
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"mode": "disagg"}, "disaggregated"),
        ({"silicon_data_source": "gtl_job_id=1"}, "of unknown concurrency"),
        ({"precision": "int3"}, UNKNOWN),
        ({"pp_size": "2"}, "pipelined"),
        ({"silicon_ttft_ms": ""}, "without TTFT or TPOT"),
        ({"silicon_tpot_ms": "0"}, "without TTFT or TPOT"),
        (MOE | {"moe_tp_size": "8", "attention_dp_size": "1"}, "of a shape that does not add up"),
    ],
)
def test_a_row_that_is_no_point_is_counted(change: dict[str, str], reason: str) -> None:
    read = read_points(table(change, {}))
    assert len(read.points) == 1
    assert read.left_out == {reason: 1}


@pytest.mark.parametrize(
    ("change", "attention_dp", "experts"),
    [
        ({"attention_dp_size": "1", "moe_tp_size": "4"}, 1, (4, 1)),
        ({"moe_tp_size": "4"}, 1, (4, 1)),
        ({"tp_size": "1", "moe_tp_size": "2", "moe_ep_size": "2"}, 4, (2, 2)),
        ({"tp_size": "2", "attention_dp_size": "4", "moe_ep_size": "8"}, 4, (1, 8)),
    ],
)
def test_attention_ranks_that_are_not_noted_follow_from_the_experts(
    change: dict[str, str], attention_dp: int, experts: tuple[int, int]
) -> None:
    [point] = read_points(table(MOE | change)).points
    shape = point.replayable
    assert shape.attention_dp == attention_dp
    assert (shape.moe_tp, shape.moe_ep) == experts


def test_what_a_dense_model_has_for_experts_is_not_read() -> None:
    [point] = read_points(table({"moe_tp_size": "2"})).points
    assert (point.replayable.moe_tp, point.replayable.attention_dp) == (1, 1)


def test_of_what_was_measured_several_times_the_last_counts() -> None:
    rows = [
        measured_at(8, date) | {"silicon_ttft_ms": ttft}
        for date, ttft in (("2026-03-01", "3"), ("2026-04-22", "2"), ("2026-04-02", "1"))
    ]
    read = read_points(table(*rows))
    assert [point.ttft_ms for point in read.points] == [2.0]
    assert read.left_out == {"measured again": 2}
    assert read.points == read_points(table(*reversed(rows))).points


def test_cells_hold_their_points_in_order() -> None:
    rows = [MOE | {"moe_tp_size": "4"}, measured_at(64), measured_at(4), {"isl": "512"}]
    by_cell = read_points(table(*rows)).by_cell()
    assert list(by_cell) == [CellKey("MiniMaxAI/MiniMax-M2.5", "h100_sxm", "vllm"), H100]
    loads = [(one.replayable.isl, one.replayable.concurrency) for one in by_cell[H100]]
    assert loads == [(512, 8), (1024, 4), (1024, 64)]


@given(count=st.integers(1, 60), most=st.integers(1, 60))
def test_chosen_points_are_spread_evenly(count: int, most: int) -> None:
    points = points_at(*range(1, count + 1))
    places = [points.index(point) for point in spread(points, most)]
    assert len(places) == min(count, most)
    assert places == sorted(set(places))
    gaps = [after - before for before, after in pairwise(places)]
    assert not gaps or max(gaps) - min(gaps) <= 1
    assert abs(places[0] - (count - 1 - places[-1])) <= 1


@pytest.mark.parametrize(
    ("asked", "found", "differs"),
    [
        ((None, None, None), CELLS, None),
        ((None, "h100_sxm", None), [CELLS[0], CELLS[2]], None),
        ((None, "gb200", "vllm"), [], None),
        (H100, [H100], None),
        (("Qwen/Qwen3-32B", "h100_sxm", None), [CELLS[0], CELLS[2]], None),
        # Another backend on the same GPU is nearer than the same one on another.
        (
            ("Qwen/Qwen3-32B", "h100_sxm", "trtllm"),
            [CELLS[0], CELLS[2]],
            "measured on vllm, not trtllm",
        ),
        (
            ("Qwen/Qwen3-32B", "b200_sxm", "sglang"),
            [CELLS[2]],
            "measured on h100_sxm, not b200_sxm",
        ),
        (
            ("nvidia/MiniMax-M2.5-NVFP4", "b200_sxm", "vllm"),
            [CELLS[3]],
            "measured on MiniMaxAI/MiniMax-M2.5, h200_sxm, not nvidia/MiniMax-M2.5-NVFP4, b200_sxm",
        ),
        (("Qwen/Qwen3-8B", "h100_sxm", "vllm"), [], None),
    ],
)
def test_the_nearest_cells(
    asked: tuple[str | None, str | None, str | None], found: list[CellKey], differs: str | None
) -> None:
    cells = nearest(CELLS, *asked)
    assert cells == found
    if cells:
        assert difference(cells[0], *asked) == differs

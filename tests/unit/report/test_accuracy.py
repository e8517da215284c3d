"""How a person is told how far replays are from silicon."""

from __future__ import annotations

import io

from rich.console import Console
from support.results import RESULT
from support.silicon import cell

from schemas.accuracy import BackendAccuracy
from schemas.goal import OptimizationGoal, OptimizationTarget
from spica_async.report.accuracy import accuracy_lines, accuracy_view
from spica_async.report.tables import result_view

OWN = BackendAccuracy(backend="vllm", cell=cell())
NEAR = BackendAccuracy(
    backend="trtllm",
    cell=cell(points=1, tpot_rank_correlation=None),
    differs="measured on h200_sxm, not h100_sxm",
)
MEDIANS = "off silicon by TPOT 8%, TTFT 30%, tok/s 8%"
CORRELATION = ", TPOT's rank correlation 0.99"
NEVER = BackendAccuracy(backend="sglang")
OLDER = BackendAccuracy(backend="sglang", timed_version="0.5.14", deployed_version="0.5.21")


def test_a_sweep_says_it_in_a_line_for_each_backend() -> None:
    assert accuracy_lines([OWN, NEAR, NEVER, OLDER]) == [
        f"accuracy with vllm: {MEDIANS} (median of 12 points, all aggregated{CORRELATION})",
        f"accuracy with trtllm: {MEDIANS} (median of 1 point, all aggregated); {NEAR.differs}",
        "accuracy with sglang: never measured",
        "accuracy with sglang: never measured; timed by sglang 0.5.14, the images have 0.5.21",
    ]


def test_the_result_of_a_sweep_shows_it() -> None:
    goal = OptimizationGoal(target=OptimizationTarget.THROUGHPUT)
    known = RESULT.model_copy(update={"accuracy": [NEVER]})
    assert "accuracy with sglang: never measured" in _text(result_view(known, goal))
    assert "accuracy" not in _text(result_view(RESULT, goal))


def test_a_cell_is_a_row() -> None:
    shown = _text(accuracy_view([cell(failed=2, measured_versions=[], tpot_rank_correlation=None)]))
    [row] = [line for line in shown.splitlines() if "h100_sxm" in line]
    assert [text.strip() for text in row.strip("│").split("│")] == [
        "Qwen/Qwen3-32B",
        "h100_sxm",
        "vllm",
        "12 of 90, 2 failed",
        "10 / 8 / 20, -5",
        "10 / 30 / 20, -5",
        "10 / 8 / 20, -5",
        "-",
        "not noted",
        "0.24.0",
    ]


def _text(view: object) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(view)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()

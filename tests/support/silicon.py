"""Points and cells as the engine's table of measurements has them, made by hand."""

from __future__ import annotations

import csv
import io
from typing import Any

from schemas.accuracy import CellAccuracy, ErrorFigures
from spica_async.accuracy.points import Point, read_points

ROW = {
    "silicon_data_source": "config_id=1; silicon_concurrency=8; measured=2026-04-17T00:00:00.000Z",
    "backend": "vllm",
    "backend_version": "0.12.0",
    "model_path": "Qwen/Qwen3-32B",
    "system": "h100_sxm",
    "precision": "",
    "mode": "agg",
    "isl": "1024",
    "osl": "128",
    "tp_size": "2",
    "pp_size": "1",
    "attention_dp_size": "",
    "moe_tp_size": "1",
    "moe_ep_size": "1",
    "silicon_ttft_ms": "154.2",
    "silicon_tpot_ms": "18.0",
}
MOE = {"model_path": "MiniMaxAI/MiniMax-M2.5", "precision": "fp8", "tp_size": "4"}


def table(*changes: dict[str, str]) -> str:
    """A table with one row for each change of `ROW`."""
    text = io.StringIO()
    writer = csv.DictWriter(text, ROW)
    writer.writeheader()
    writer.writerows(ROW | change for change in changes)
    return text.getvalue()


def measured_at(concurrency: int, date: str = "2026-04-17") -> dict[str, str]:
    """The source of a row."""
    return {"silicon_data_source": f"a; silicon_concurrency={concurrency}; measured={date}T00Z"}


def points_at(*concurrencies: int, **changes: str) -> list[Point]:
    """Points of one cell, alike but for their concurrency."""
    rows = (measured_at(concurrency) | changes for concurrency in concurrencies)
    return list(read_points(table(*rows)).points)


def cell(
    model: str = "Qwen/Qwen3-32B", sku: str = "h100_sxm", backend: str = "vllm", **changes: Any
) -> CellAccuracy:
    """What is known of a cell."""
    figures = ErrorFigures(mean=0.1, median=0.08, p90=0.2, signed_median=-0.05)
    known = CellAccuracy(
        model=model,
        hardware_sku=sku,
        backend=backend,
        points=12,
        available=90,
        tpot=figures,
        ttft=figures.model_copy(update={"median": 0.3}),
        throughput=figures,
        tpot_rank_correlation=0.987,
        measured_as=["Qwen/Qwen3-32B"],
        measured_versions=["0.12.0"],
        simulated_version="0.24.0",
    )
    return known.model_copy(update=changes)

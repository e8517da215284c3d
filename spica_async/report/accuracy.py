"""How far replays are from silicon, as tables and as the one line of a sweep's result."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from schemas.accuracy import BackendAccuracy, CellAccuracy, ErrorFigures

_NOT_NOTED = "not noted"


def accuracy_view(cells: Iterable[CellAccuracy]) -> RenderableType:
    """A row for each cell, and below the table what its columns are."""
    table = Table(title="replays against silicon", title_justify="left")
    for name in ("model", "GPU", "backend"):
        table.add_column(name, overflow="fold")
    for name in ("points", "TPOT %", "TTFT %", "tok/s %", "rank"):
        table.add_column(name, justify="right")
    for name in ("measured on", "simulated"):
        table.add_column(name, overflow="fold")
    for cell in cells:
        table.add_row(
            cell.model,
            cell.hardware_sku,
            cell.backend,
            _points(cell),
            *(_errors(one) for one in (cell.tpot, cell.ttft, cell.throughput)),
            _rank(cell.tpot_rank_correlation),
            ", ".join(cell.measured_versions) or _NOT_NOTED,
            cell.simulated_version or _NOT_NOTED,
        )
    legend = (
        "errors in percent of what was measured: mean / median / 90th percentile of their sizes,"
        " and the median with its sign (below 0: replays tell less)\n"
        "rank: Spearman's correlation of TPOT; points: replayed of those measured"
    )
    return Group(table, Text(legend, style="dim"))


def accuracy_lines(accuracy: Iterable[BackendAccuracy]) -> list[str]:
    """What a sweep's result says of its accuracy, in a line for each backend."""
    return [f"accuracy with {one.backend}: {_known(one)}{_versions(one)}" for one in accuracy]


def _known(accuracy: BackendAccuracy) -> str:
    cell = accuracy.cell
    if cell is None:
        return "never measured"
    figures = ", ".join(
        f"{name} {figures.median:.0%}"
        for name, figures in (("TPOT", cell.tpot), ("TTFT", cell.ttft), ("tok/s", cell.throughput))
    )
    points = "1 point" if cell.points == 1 else f"{cell.points} points"
    text = f"off silicon by {figures} (median of {points}, all aggregated"
    if cell.tpot_rank_correlation is not None:
        text += f", TPOT's rank correlation {cell.tpot_rank_correlation:.2f}"
    return text + ")" + (f"; {accuracy.differs}" if accuracy.differs is not None else "")


def _versions(accuracy: BackendAccuracy) -> str:
    timed, deployed = accuracy.timed_version, accuracy.deployed_version
    if not (timed and deployed) or timed == deployed:
        return ""
    return f"; timed by {accuracy.backend} {timed}, the images have {deployed}"


def _points(cell: CellAccuracy) -> str:
    failed = f", {cell.failed} failed" if cell.failed else ""
    return f"{cell.points} of {cell.available}{failed}"


def _errors(figures: ErrorFigures) -> str:
    sizes = (figures.mean, figures.median, figures.p90)
    return (
        f"{' / '.join(f'{100 * size:.0f}' for size in sizes)}, {100 * figures.signed_median:+.0f}"
    )


def _rank(correlation: float | None) -> str:
    return "-" if correlation is None else f"{correlation:.2f}"

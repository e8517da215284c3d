"""The accuracy of a cell from its replayed points, and which cell says most of a sweep. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from schemas.accuracy import BackendAccuracy, CellAccuracy
from spica_async.accuracy.errors import error_figures, rank_correlation
from spica_async.accuracy.points import CellKey, Replayable, difference, nearest
from spica_async.accuracy.replays import Comparison

_MILLISECONDS: Final = 1000.0


def cell_accuracy(
    comparisons: Sequence[Comparison], *, available: int, failed: int, simulated_version: str
) -> CellAccuracy:
    """The errors over a cell's points.

    Args:
        comparisons: of points of one cell, at least one.
        available: points that the cell has.
        failed: points that were tried besides and could not be replayed.
        simulated_version: of the backend, whose steps the replays were timed by.
    """
    points = [one.point for one in comparisons]
    key = points[0].cell
    tpot, measured_tpot = [one.tpot_ms for one in comparisons], [point.tpot_ms for point in points]
    return CellAccuracy(
        model=key.model,
        hardware_sku=key.hardware_sku,
        backend=key.backend,
        points=len(points),
        available=available,
        failed=failed,
        tpot=error_figures(tpot, measured_tpot),
        ttft=error_figures(
            [one.ttft_ms for one in comparisons], [point.ttft_ms for point in points]
        ),
        throughput=error_figures(
            [throughput(one.point.replayable, one.ttft_ms, one.tpot_ms) for one in comparisons],
            [throughput(point.replayable, point.ttft_ms, point.tpot_ms) for point in points],
        ),
        tpot_rank_correlation=rank_correlation(tpot, measured_tpot),
        measured_as=sorted({point.measured_as for point in points}),
        measured_versions=sorted({point.version for point in points} - {""}),
        simulated_version=simulated_version,
    )


def throughput(load: Replayable, ttft_ms: float, tpot_ms: float) -> float:
    """Output tokens per second of a closed loop, by Little's law.

    The table has none measured; so both sides are worked out alike.
    """
    request_ms = ttft_ms + (load.osl - 1) * tpot_ms
    return _MILLISECONDS * load.concurrency * load.osl / request_ms


def accuracy_of(
    cells: Iterable[CellAccuracy], model: str, hardware_sku: str, backends: Iterable[str]
) -> list[BackendAccuracy]:
    """What the known cells say of a sweep, for each of its backends.

    Args:
        cells: those known.
        model: the sweep's.
        hardware_sku: the sweep's.
        backends: the sweep's.
    """
    known = {key_of(cell): cell for cell in cells}
    return [_accuracy_of(known, CellKey(model, hardware_sku, backend)) for backend in backends]


def key_of(cell: CellAccuracy) -> CellKey:
    """What the cell is told apart by."""
    return CellKey(cell.model, cell.hardware_sku, cell.backend)


def _accuracy_of(known: Mapping[CellKey, CellAccuracy], wanted: CellKey) -> BackendAccuracy:
    keys = nearest(known, *wanted)
    if not keys:
        return BackendAccuracy(backend=wanted.backend)
    # Of equally near ones the best founded.
    key = min(keys, key=lambda key: (-known[key].points, key))
    return BackendAccuracy(
        backend=wanted.backend, cell=known[key], differs=difference(key, *wanted)
    )

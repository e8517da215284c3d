"""Replays measured points in this machine's processes, and works out how far off they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from schemas.accuracy import CellAccuracy
from spica_async.accuracy.cells import cell_accuracy
from spica_async.accuracy.points import CellKey, Point
from spica_async.accuracy.replays import Comparison, comparison, replay_request
from spica_async.engine.silicon import timed_version
from spica_async.errors import SpicaError, first_cause
from spica_async.processes.memory import free_memory
from spica_async.processes.shielded import shielded
from workers.port import ChildDeaths, ChildStartError
from workers.settings import ChildSettings
from workers.slot import Slot


@dataclass
class CellReplays:
    """The replays of one cell.

    Attributes:
        available: points that the cell has.
        chosen: points that are replayed.
        comparisons: what those that ended well have told.
        problems: in one line each, why others have told nothing.
    """

    available: int
    chosen: Sequence[Point]
    comparisons: list[Comparison] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Whether all points were replayed."""
        return len(self.comparisons) + len(self.problems) == len(self.chosen)

    def accuracy(self) -> CellAccuracy | None:
        """The errors of the cell; None if none of its points could be replayed."""
        if not self.comparisons:
            return None
        # Slots end in any order, and sums of floats depend on theirs.
        ordered = sorted(self.comparisons, key=lambda one: one.point.replayable)
        key = ordered[0].point.cell
        return cell_accuracy(
            ordered,
            available=self.available,
            failed=len(self.problems),
            simulated_version=timed_version(key.hardware_sku, key.backend),
        )


async def replay_cells(
    cells: Mapping[CellKey, CellReplays],
    *,
    slots: int,
    ended: Callable[[CellKey], None],
    children: ChildSettings | None = None,
) -> None:
    """Replay the points of all cells, one in each slot at a time, cell after cell.

    Args:
        cells: what is replayed; what has become of it is written there.
        slots: replays at a time.
        ended: called after each replay with its cell.
        children: how the replay processes are started; none: as a worker's.

    Raises:
        SpicaError: no replay process can be started.
    """
    points = iter([point for cell in cells.values() for point in cell.chosen])
    memory = free_memory() // slots
    try:
        async with asyncio.TaskGroup() as group:
            for index in range(slots):
                slot = Slot(index, children or ChildSettings(), memory)
                group.create_task(_replay(slot, points, cells, ended))
    except* ChildStartError as error:
        raise SpicaError(str(first_cause(error))) from None


async def _replay(
    slot: Slot,
    points: Iterator[Point],
    cells: Mapping[CellKey, CellReplays],
    ended: Callable[[CellKey], None],
) -> None:
    """Replay, in one slot, what no other slot has taken yet."""
    try:
        for point in points:
            measurement = await slot.evaluate(replay_request(point), ChildDeaths())
            told = comparison(point, measurement)
            cell = cells[point.cell]
            if isinstance(told, Comparison):
                cell.comparisons.append(told)
            else:
                cell.problems.append(told)
            ended(point.cell)
    finally:
        await shielded(slot.close())

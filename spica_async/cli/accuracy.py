"""`spica-async accuracy`: how far replays are from what was measured on silicon."""

from __future__ import annotations

import asyncio
import json as documents
from typing import TYPE_CHECKING, Annotated

import typer

from spica_async.cli.options import AsJson, Slots
from spica_async.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schemas.accuracy import CellAccuracy
    from spica_async.accuracy.points import CellKey
    from spica_async.service.accuracy import CellReplays

_DEFAULT_POINTS = 16


def accuracy(
    *,
    model: Annotated[
        str | None, typer.Option(help="as in search_space.model_name; default: all", metavar="ID")
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(help="as in search_space.hardware_sku; default: all", metavar="SKU"),
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help="vllm, sglang or trtllm; default: all", metavar="NAME")
    ] = None,
    points: Annotated[
        int, typer.Option(min=1, help="of each model, GPU and backend, at most", metavar="N")
    ] = _DEFAULT_POINTS,
    known: Annotated[
        bool, typer.Option("--known", help="replay nothing: show what is known already")
    ] = False,
    slots: Slots = None,
    json: AsJson = False,
) -> None:
    """Replay deployments that were measured on silicon, and show how far off the replays are.

    A model that was measured on other GPUs or backends alone is replayed on the nearest. What comes
    out is kept, and shown with the results of sweeps.
    """
    from spica_async.accuracy.cells import key_of
    from spica_async.accuracy.kept import known_cells
    from spica_async.accuracy.points import read_points
    from spica_async.cli.logs import log_warnings_to_stderr
    from spica_async.engine.silicon import silicon_table
    from spica_async.engine.versions import engine_fingerprint

    log_warnings_to_stderr()
    by_cell = read_points(silicon_table()).by_cell()
    keys = _asked(list(by_cell), model, hardware, backend)
    if known:
        found = [cell for cell in known_cells(engine_fingerprint()) if key_of(cell) in keys]
    else:
        from spica_async.accuracy.points import spread
        from spica_async.service.accuracy import CellReplays

        found = _replayed(
            {key: CellReplays(len(by_cell[key]), spread(by_cell[key], points)) for key in keys},
            slots,
        )
    if json:
        typer.echo(documents.dumps([cell.model_dump(mode="json") for cell in found], indent=2))
    else:
        from spica_async.report.accuracy import accuracy_view
        from spica_async.report.tables import print_view

        print_view(accuracy_view(found))


def _asked(
    cells: Sequence[CellKey], model: str | None, hardware: str | None, backend: str | None
) -> list[CellKey]:
    """The cells that were asked for or, with a note on stderr, the nearest.

    Raises:
        InputError: naming the option that no measurement goes with.
    """
    from spica_async.accuracy.points import difference, is_related, nearest
    from spica_async.report.screen import ProgressConsole

    for option, value, names in (
        ("--hardware", hardware, {cell.hardware_sku for cell in cells}),
        ("--backend", backend, {cell.backend for cell in cells}),
        ("--model", model, {cell.model for cell in cells}),
    ):
        if value is None or value in names:
            continue
        if option == "--model" and any(is_related(name, value) for name in names):
            continue
        if option == "--model" or model is None:
            raise InputError(
                f"{option}: {value!r} was never measured; measured were {', '.join(sorted(names))}"
            )
    keys = nearest(cells, model, hardware, backend)
    if not keys:
        raise InputError(f"--backend: {backend} was never measured on {hardware}")
    if (differs := difference(keys[0], model, hardware, backend)) is not None:
        ProgressConsole().print_line(f"the nearest: {differs}")
    return keys


def _replayed(cells: dict[CellKey, CellReplays], slots: int | None) -> list[CellAccuracy]:
    """What replays of the cells' points have told; kept as far as it has come, too."""
    from spica_async.accuracy.kept import keep
    from spica_async.engine.versions import engine_fingerprint
    from spica_async.report.screen import ProgressConsole
    from spica_async.service.accuracy import replay_cells
    from workers.settings import checked_slots

    console = ProgressConsole()

    def ended(key: CellKey) -> None:
        cell = cells[key]
        done = len(cell.comparisons) + len(cell.problems)
        console.print_line(f"{' '.join(key)}: {done} of {len(cell.chosen)}")

    try:
        asyncio.run(replay_cells(cells, slots=checked_slots(slots), ended=ended))
    finally:
        whole = [cell for cell in cells.values() if cell.ended]
        found = [one for cell in whole if (one := cell.accuracy()) is not None]
        keep(found, engine_fingerprint())
    for key, cell in cells.items():
        for problem in dict.fromkeys(cell.problems):
            console.print_line(f"{' '.join(key)}: {cell.problems.count(problem)} x {problem}")
    return found

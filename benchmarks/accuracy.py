"""How far replays are from silicon, what makes TTFT so far off, and whether what is shipped holds.

    python benchmarks/accuracy.py why --points 4
    python benchmarks/accuracy.py versions
    python benchmarks/accuracy.py ship --points 16
    python benchmarks/accuracy.py check --cells 8

`why` replays points of every cell in several ways. `versions` compares silicon with silicon: what
was measured again, on the same version of the backend and on another. `ship` replays the points of
every cell but of those that are kept already, and writes the table that ships with the package.
`check` replays all points of cells, however many were shipped, and ends with exit code 1 where a
shipped mean or median is more than five points of percent off.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import io
import json
import multiprocessing
import random
import re
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from schemas.accuracy import CellAccuracy
from schemas.messages import EvaluationRequest, SyntheticLoad
from spica_async.accuracy import kept
from spica_async.accuracy.cells import key_of
from spica_async.accuracy.errors import error_figures
from spica_async.accuracy.points import CellKey, Point, read_points, spread
from spica_async.accuracy.replays import REQUESTS_PER_SLOT, replay_request
from spica_async.engine import runtime
from spica_async.engine.evaluation import replay_arguments
from spica_async.engine.refusals import one_line
from spica_async.engine.silicon import silicon_table
from spica_async.engine.versions import engine_fingerprint
from spica_async.report.accuracy import accuracy_view
from spica_async.service.accuracy import CellReplays, replay_cells
from workers.settings import checked_slots

GOAL: Final = 0.05
FEWEST: Final = 10
LONGEST_OSL: Final = 1024
MOST_CONCURRENCY: Final = 128


@dataclass(frozen=True)
class Way:
    """A way of replaying a point.

    Attributes:
        name: what the table calls it.
        requests_per_slot: requests by concurrency.
        shortest: lengths are drawn evenly from this share of the point's to all of it.
        batched_tokens: of a step.
    """

    name: str
    requests_per_slot: int = REQUESTS_PER_SLOT
    shortest: float = 1.0
    batched_tokens: int = 8192


WAYS: Final = (
    Way("as the command does: 10 x, one length, 8192 tokens a step"),
    Way("3 x", requests_per_slot=3),
    Way("lengths from 80 to 100 %", shortest=0.8),
    Way("2048 tokens a step", batched_tokens=2048),
    Way("16384 tokens a step", batched_tokens=16384),
    Way("lengths from 80 to 100 %, 2048 tokens a step", shortest=0.8, batched_tokens=2048),
)


@dataclass(frozen=True)
class Told:
    """What a replay has told, in milliseconds; `steady` leaves the first arrivals out."""

    way: int
    point: Point
    ttft_ms: float
    steady_ttft_ms: float
    tpot_ms: float


def main() -> int:
    """Do what was asked; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=("why", "versions", "ship", "check"))
    parser.add_argument("--points", type=int, default=16, help="of each cell, at most")
    parser.add_argument("--cells", type=int, default=1000, help="how many cells to check, at most")
    parser.add_argument("--slots", type=int, help="replays at a time; default: cores")
    asked = parser.parse_args()
    slots = checked_slots(asked.slots)
    match asked.what:
        case "why":
            return why(asked.points, slots)
        case "versions":
            return versions()
        case "ship":
            return ship(asked.points, slots)
        case _:
            return check(asked.cells, slots)


def why(most: int, slots: int) -> int:
    """Replay points in all ways, and print the errors of each."""
    points = [
        point
        for cell in read_points(silicon_table()).by_cell().values()
        for point in spread([one for one in cell if _is_short(one)], most)
    ]
    told: dict[int, list[Told]] = defaultdict(list)
    failed = 0
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(slots, mp_context=context) as pool:
        for done in as_completed([pool.submit(replay_in_all_ways, point) for point in points]):
            found = done.result()
            if isinstance(found, str):
                failed += 1
                print(found, file=sys.stderr, flush=True)
                continue
            for one in found:
                told[one.way].append(one)
            print(f"{len(told[0])} of {len(points)}", file=sys.stderr, flush=True)
    table = Table(title=f"{len(told[0])} points, {failed} could not be replayed; errors in %")
    for column in ("way", "TTFT", "steady TTFT", "TPOT"):
        table.add_column(column, overflow="fold")
    for index, way in enumerate(WAYS):
        ours = told[index]
        measured = [one.point.ttft_ms for one in ours]
        table.add_row(
            way.name,
            _shown([one.ttft_ms for one in ours], measured),
            _shown([one.steady_ttft_ms for one in ours], measured),
            _shown([one.tpot_ms for one in ours], [one.point.tpot_ms for one in ours]),
        )
    console = Console(width=140)
    console.print(table)
    console.print("mean / median / 90th percentile of sizes, and the median with its sign")
    return 0


def replay_in_all_ways(point: Point) -> list[Told] | str:
    """What each way tells of a point, or why none does."""
    try:
        return [_replay(index, point) for index in range(len(WAYS))]
    except BaseException as error:
        if not runtime.is_fault(error):
            raise
        return f"{replay_request(point).evaluation_id}: {one_line(error)}"


def _replay(index: int, point: Point) -> Told:
    way, request = WAYS[index], replay_request(point)
    sample = request.sample | {"agg_max_num_batched_tokens": way.batched_tokens}
    arguments = replay_arguments(sample, None) | {"capture_per_request": True}
    requests = _served(request, way, arguments)
    requests.sort(key=lambda one: (one["first_admit_ms"], one["arrival_time_ms"]))
    steady = requests[point.replayable.concurrency :]
    return Told(
        way=index,
        point=point,
        ttft_ms=statistics.fmean(one["ttft_ms"] for one in requests),
        steady_ttft_ms=statistics.fmean(one["ttft_ms"] for one in steady),
        tpot_ms=statistics.fmean(map(_tpot_ms, requests)),
    )


def _served(
    request: EvaluationRequest, way: Way, arguments: dict[str, Any]
) -> list[Mapping[str, Any]]:
    """Each request of a replay."""
    load = request.load
    assert isinstance(load, SyntheticLoad)
    assert load.concurrency is not None
    api = runtime.load("dynamo.replay.api")
    count = way.requests_per_slot * load.concurrency
    if way.shortest == 1:
        result = api.run_synthetic_trace_replay(
            load.isl, load.osl, count, replay_concurrency=load.concurrency, **arguments
        )
        return list(result.per_request)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as trace:
        trace.writelines(_lines(load, count, way.shortest))
        trace.flush()
        result = api.run_trace_replay(
            trace.name,
            trace_format="mooncake",
            trace_block_size=512,
            replay_concurrency=load.concurrency,
            **arguments,
        )
        return list(result.per_request)


def _lines(load: SyntheticLoad, count: int, shortest: float) -> Iterator[str]:
    """A trace whose requests share nothing and arrive as soon as they may."""
    draw = random.Random(1)  # noqa: S311  # lengths, and the same each time
    block = 0
    for _ in range(count):
        isl, osl = (draw.randint(int(shortest * size), size) for size in (load.isl, load.osl))
        blocks = -(-isl // 512)
        row = {
            "timestamp": 0,
            "input_length": isl,
            "output_length": osl,
            "hash_ids": list(range(block, block + blocks)),
        }
        block += blocks
        yield json.dumps(row) + "\n"


def _tpot_ms(request: Mapping[str, Any]) -> float:
    later = max(1, request["output_length"] - 1)
    return float((request["last_token_ms"] - request["first_token_ms"]) / later)


def _is_short(point: Point) -> bool:
    load = point.replayable
    return load.osl <= LONGEST_OSL and load.concurrency <= MOST_CONCURRENCY


def _shown(simulated: Sequence[float], measured: Sequence[float]) -> str:
    figures = error_figures(simulated, measured)
    sizes = (figures.mean, figures.median, figures.p90)
    shown = " / ".join(f"{100 * size:.0f}" for size in sizes)
    return f"{shown}, {100 * figures.signed_median:+.0f}"


_REPEATED: Final = ("model_path", "precision", "system", "backend", "isl", "osl", "tp_size")
_RANKS: Final = ("attention_dp_size", "moe_tp_size", "moe_ep_size")


def versions() -> int:
    """Print how far measurements of one deployment and load are from each other."""
    repeated: dict[tuple[str, ...], set[tuple[str, str, float, float]]] = defaultdict(set)
    for row in csv.DictReader(io.StringIO(silicon_table())):
        source = row["silicon_data_source"]
        concurrency = re.search(r"silicon_concurrency=(\d+)", source)
        date = re.search(r"measured=([\d-]{10})", source)
        if row["mode"] == "agg" and concurrency and row["backend_version"]:
            key = (*(row[name] for name in (*_REPEATED, *_RANKS)), concurrency[1])
            repeated[key].add(
                (
                    row["backend_version"],
                    date[1] if date else "",
                    # The same measurement was written with more digits or fewer.
                    round(float(row["silicon_ttft_ms"])),
                    round(float(row["silicon_tpot_ms"]), 1),
                )
            )
    table = Table(title="silicon against silicon: median and 90th percentile, in %")
    for column in ("", "pairs", "TTFT", "TPOT"):
        table.add_column(column)
    for name, is_same in (("same version", True), ("another version", False)):
        pairs = [
            (one, other)
            for ones in repeated.values()
            for place, one in enumerate(sorted(ones))
            for other in sorted(ones)[:place]
            if (one[0] == other[0]) is is_same
        ]
        figures = [
            error_figures([one[at] for one, _ in pairs], [other[at] for _, other in pairs])
            for at in (2, 3)
        ]
        shown = [f"{100 * one.median:.1f}, {100 * one.p90:.0f}" for one in figures]
        table.add_row(name, str(len(pairs)), *shown)
    Console().print(table)
    return 0


def ship(most: int, slots: int) -> int:
    """Replay points of every cell and write the table that ships with the package."""
    fingerprint = engine_fingerprint()
    by_cell = read_points(silicon_table()).by_cell()
    chosen = {
        key: CellReplays(len(points), spread(points, most)) for key, points in by_cell.items()
    }
    # So that it can be interrupted.
    kept_already = {
        key_of(cell): cell
        for cell in kept.kept_cells(fingerprint)
        if cell.points + cell.failed == len(chosen[key_of(cell)].chosen)
    }
    missing = {key: cell for key, cell in chosen.items() if key not in kept_already}
    cells = [*kept_already.values(), *_replayed(missing, slots)]
    path = Path(kept.__file__).parent / kept.SHIPPED
    path.write_text(kept.table_text(cells, fingerprint), encoding="utf-8")
    Console(width=180).print(accuracy_view(cells))
    return 0


def check(most: int, slots: int) -> int:
    """Replay all points of cells that have enough, and hold the shipped figures against them."""
    shipped = {key_of(cell): cell for cell in kept.shipped_cells(engine_fingerprint())}
    by_cell = {
        key: points
        for key, points in read_points(silicon_table()).by_cell().items()
        if len(points) >= FEWEST and key in shipped
    }
    chosen = random.Random(0).sample(sorted(by_cell), min(most, len(by_cell)))  # noqa: S311  # the same each time
    fresh = _replayed({key: CellReplays(len(by_cell[key]), by_cell[key]) for key in chosen}, slots)
    table = Table(title="shipped and fresh errors, mean / median in %")
    for column in ("cell", "points", "TPOT", "TTFT", "tok/s", "off by"):
        table.add_column(column, overflow="fold")
    worst = 0.0
    for cell in fresh:
        known = shipped[key_of(cell)]
        pairs = [
            (getattr(known, name), getattr(cell, name)) for name in ("tpot", "ttft", "throughput")
        ]
        off = max(
            abs(getattr(ours, name) - getattr(now, name))
            for ours, now in pairs
            for name in ("mean", "median")
        )
        worst = max(worst, off)
        table.add_row(
            " ".join(key_of(cell)),
            f"{known.points} and {cell.points}",
            *(
                f"{100 * ours.mean:.0f} / {100 * ours.median:.0f} and"
                f" {100 * now.mean:.0f} / {100 * now.median:.0f}"
                for ours, now in pairs
            ),
            f"{100 * off:.1f}",
        )
    Console(width=180).print(table)
    return 0 if worst <= GOAL else 1


def _replayed(cells: dict[CellKey, CellReplays], slots: int) -> list[CellAccuracy]:
    def ended(key: CellKey) -> None:
        if cells[key].ended:
            if (cell := cells[key].accuracy()) is not None:
                kept.keep([cell], engine_fingerprint())
            print(" ".join(key), file=sys.stderr, flush=True)

    asyncio.run(replay_cells(cells, slots=slots, ended=ended))
    return [one for cell in cells.values() if (one := cell.accuracy()) is not None]


if __name__ == "__main__":
    sys.exit(main())

"""The same sweeps by `aisimulate recommend` and by ours; the exit code is 1 when a goal is missed.

    python benchmarks/against_rival.py
    python benchmarks/against_rival.py throughput router --core 1
    python benchmarks/against_rival.py pareto --rival-results DIR --sweep '{schedule: rounds}'

Both search on one and the same core, one after the other: first the rival, then ours with an
empty cache folder, as on the first day, then ours again, which is what the goals are for. Ours
evaluates as many candidates as the rival did. The router's sweep replays a real trace
(`SPICA_TRACES`, else `../shared/traces`). Everything takes about half an hour, on a machine that
has nothing else to do; `benchmarks/side_by_side/README.md` tells what is compared with what.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import yaml
from rich.console import Console
from side_by_side import ours, rival
from side_by_side.contest import CONTESTS, Contest, TraceMissingError
from side_by_side.outcome import Outcome
from side_by_side.recording import UnreadableRunError
from side_by_side.table import disturbances, goals, show, show_goals

console = Console(width=140)


def main() -> int:
    """Run the named sweeps on both sides, and tell whether every goal is met."""
    options = _options()
    signal.signal(signal.SIGTERM, _exit)
    _leave_core(options.core)
    folder = (options.out or Path(tempfile.mkdtemp(prefix="against-rival-"))).resolve()
    console.print(f"Everything that is measured is kept in {folder}.")
    met = True
    for name in options.sweeps:
        try:
            met &= _compare(CONTESTS[name], folder / name, options)
        except (TraceMissingError, UnreadableRunError) as error:
            console.print(f"{name}: {error}", markup=False, style="red")
            met = False
    return 0 if met else 1


def _compare(contest: Contest, folder: Path, options: argparse.Namespace) -> bool:
    if options.rival_results is None:
        theirs = folder / "rival"
        console.print(f"{contest.name}: the rival searches ...")
        rival.run(contest, theirs, core=options.core)
    else:
        theirs = options.rival_results / contest.name / "rival"
    told = rival.read(contest, theirs)
    runs = [("rival", told)]
    for which in ("first", "second"):
        console.print(f"{contest.name}: ours searches, {which} time ...")
        place = folder / f"ours-{which}"
        ours.run(
            contest,
            place,
            core=options.core,
            budget=told.evaluated,
            cache=folder / "cache",
            sweep=options.sweep,
        )
        runs.append((f"ours, {which} time", ours.read(contest, place)))
    return _report(contest, runs)


def _report(contest: Contest, runs: list[tuple[str, Outcome]]) -> bool:
    show(console, contest, runs)
    reached = goals(contest, runs[0][1], runs[-1][1])
    show_goals(console, contest, reached)
    for line in disturbances(runs):
        console.print(line, markup=False, style="yellow")
    return all(goal.met for goal in reached)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sweeps", nargs="*", metavar="SWEEP", help=", ".join(CONTESTS))
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="the one")
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep everything here")
    parser.add_argument(
        "--rival-results", type=Path, metavar="DIR", help="do not run the rival: take an older DIR"
    )
    parser.add_argument(
        "--sweep", type=_mapping, default={}, metavar="YAML", help="settings of our sweep block"
    )
    options = parser.parse_args()
    options.sweeps = options.sweeps or list(CONTESTS)
    unknown = [name for name in options.sweeps if name not in CONTESTS]
    if unknown:
        parser.error(f"no such sweep: {', '.join(unknown)}; there are {', '.join(CONTESTS)}")
    if options.core not in os.sched_getaffinity(0):
        parser.error(f"--core: this process may not use core {options.core}")
    return options


def _mapping(text: str) -> dict[str, Any]:
    value = yaml.safe_load(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"a mapping, e.g. {{schedule: rounds}}, not {text!r}")
    return value


def _leave_core(core: int) -> None:
    """Watch from the other cores, if there are any."""
    os.sched_setaffinity(0, os.sched_getaffinity(0) - {core} or {core})


def _exit(number: int, _: object) -> NoReturn:
    """End as by Ctrl-C, with everything that was started."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())

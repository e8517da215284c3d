"""One sweep whose coordinators, workers and broker are killed at random times.

    python benchmarks/torture.py --kills 100 --seed 1

Starts a RabbitMQ node, worker processes and coordinators of its own, with the random profile and
replays that only sleep, and ends them by SIGKILL, one after the other and at the same time. Each
coordinator goes on where the one before it was. In the end the sweep must have exactly its budget,
each candidate once and with its own result, and events without a gap. The exit code is 1 when that
does not hold.

The seed settles what is killed and after how long; what that meets is up to the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import traceback
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # For `support`.

from support.broker import BrokerNode, why_missing
from support.killing.torture import torture

from spica_async.storage.address import sqlite_url

console = Console(width=150, highlight=False)


def main() -> int:
    """Torture, print what came of it, and tell whether all was well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100, help="of everything together")
    parser.add_argument("--seed", type=int, default=1, help="of all that is random")
    parser.add_argument("--per-branch", type=int, default=300, help="candidates of two branches")
    options = parser.parse_args()
    missing = why_missing()
    if missing is not None:
        console.print(f"error: {missing}")
        return 2
    folder = Path(tempfile.mkdtemp(prefix="spica-torture-"))
    with BrokerNode() as node:
        try:
            figures = asyncio.run(
                torture(
                    node,
                    folder,
                    sqlite_url(folder / "journal.sqlite3"),
                    seed=options.seed,
                    kills=options.kills,
                    per_branch=options.per_branch,
                    report=console.print,
                )
            )
        except Exception:  # noqa: BLE001  # whatever it is, the seed is told with it
            console.print(traceback.format_exc(), markup=False)
            console.print(f"broken: again with --seed {options.seed}; all of it is in {folder}")
            return 1
    table = Table("figure", "value", title="What came of it")
    for what, count in sorted(figures.kills.items()):
        table.add_row(f"kills of a {what}", str(count))
    for what, value in (
        ("candidates, exactly the budget", figures.candidates),
        ("evaluations that were begun", figures.evaluations),
        ("coordinators", figures.runs),
        ("events, without a gap", figures.events),
        ("seconds", round(figures.seconds)),
    ):
        table.add_row(what, str(value))
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())

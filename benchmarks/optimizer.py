"""What the optimizer costs and finds, against random search and Optuna; all on one core.

    python benchmarks/optimizer.py
    python benchmarks/optimizer.py --only quality --spaces ridge --contenders fast optuna_gp
    python benchmarks/optimizer.py --only speed memory --stock

Three spaces with known optima are searched for one objective and for two, in batches of eight.
Optuna runs in an environment of its own (`make bench-setup`). Each measurement is kept in the
output folder as soon as it is made, and made only if the same code has not made it: a run that was
interrupted goes on where it was. The whole takes an hour and a half, and half an hour more with
`--stock`, which adds Vizier's own settings with the first seed alone and 32 trials. The exit code
is 1 when the fast profile misses a goal.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import version
from itertools import product
from pathlib import Path

from rich.console import Console
from synthetic.contenders import CONTENDERS, OPTUNA, STOCK
from synthetic.measuring import BATCH, Record, Task, carry_out
from synthetic.records import Records, digest_of
from synthetic.spaces import PROBLEMS
from synthetic.tables import (
    goals,
    goals_table,
    memory_table,
    quality_table,
    search_cost_table,
    speed_table,
)

from spica_async.cli.logs import log_warnings_to_stderr

PARTS = ("speed", "memory", "quality")
SPEED_TOLD = (32, 64, 128, 256)
SPEED_SPACE = "smooth"
STOCK_TRIALS = 32
MEMORY_TRIALS = 504

console = Console(width=160)


def tasks(options: argparse.Namespace) -> Iterator[Task]:
    """Everything that the options ask for, in the order in which it is to be measured."""
    kinds = options.objectives
    if "speed" in options.only:
        for name, count, told in product(options.contenders, kinds, SPEED_TOLD):
            if name != "random":
                yield Task("speed", name, SPEED_SPACE, count, options.seeds[0], told)
    if "memory" in options.only and "fast" in options.contenders:
        for count in kinds:
            yield Task("memory", "fast", SPEED_SPACE, count, options.seeds[0], MEMORY_TRIALS)
    if "quality" in options.only:
        for seed, space, count, name in product(
            options.seeds, options.spaces, kinds, options.contenders
        ):
            yield Task("quality", name, space, count, seed, options.trials)
        if options.stock:
            for space, count in product(options.spaces, kinds):
                yield Task("quality", STOCK, space, count, options.seeds[0], STOCK_TRIALS)


def main() -> int:
    """Measure what is missing, print the tables, and tell whether every goal is met."""
    options = _options()
    os.sched_setaffinity(0, {options.core})
    log_warnings_to_stderr()
    records = Records(
        options.out / "optimizer.jsonl", Record, code_of=_code_of, fresh=options.fresh
    )
    wanted = list(tasks(options))
    missing = [task for task in wanted if task not in records]
    console.print(
        f"One core ({options.core}); seeds {', '.join(map(str, options.seeds))};"
        f" batches of {BATCH}; {len(wanted)} measurements, {len(missing)} of them to be made.\n"
        f"Python {platform.python_version()}, google-vizier {version('google-vizier')},"
        f" jax {version('jax')}; load average {os.getloadavg()[0]:.1f}."
    )
    for number, task in enumerate(missing, 1):
        console.print(f"{number} of {len(missing)}: {task.title}", highlight=False)
        record = asyncio.run(
            carry_out(task, optuna_python=options.optuna_python, log_folder=options.out)
        )
        if record.stats.stand_ins:
            # What was measured then is a quasi-random draw.
            raise RuntimeError(f"{task.title}: the optimizer failed; see {options.out}")
        records.add(record)
    of_part = {part: [records[t] for t in wanted if t.part == part] for part in PARTS}
    if of_part["quality"]:
        console.print(quality_table(of_part["quality"]), search_cost_table(of_part["quality"]))
    if of_part["speed"]:
        console.print(speed_table(of_part["speed"]))
    if of_part["memory"]:
        console.print(memory_table(of_part["memory"]))
    found = goals([records[task] for task in wanted])
    if found:
        console.print(goals_table(found))
    return 0 if all(goal.is_met for goal in found) else 1


def _code_of(task: Task) -> str:
    ours = () if task.contender in OPTUNA else ("spica_async/optimizer",)
    return digest_of("benchmarks/synthetic", *ours)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="some parts")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument("--spaces", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS))
    parser.add_argument("--objectives", nargs="+", type=int, choices=(1, 2), default=(1, 2))
    parser.add_argument("--seeds", nargs="+", type=int, default=(1, 2, 3, 4, 5))
    parser.add_argument("--trials", type=int, default=128, help="of a search for quality")
    parser.add_argument("--core", type=int, default=0, help="the one to run on")
    parser.add_argument("--stock", action="store_true", help="Vizier's own settings too")
    parser.add_argument("--out", type=Path, default=Path("results/optimizer"), help="a folder")
    parser.add_argument("--fresh", action="store_true", help="forget what the folder holds")
    parser.add_argument(
        "--optuna-python",
        type=Path,
        default=Path(".venv-bench/bin/python"),
        help="the interpreter that has what benchmarks/requirements.txt lists",
    )
    options = parser.parse_args()
    if options.trials % BATCH:
        parser.error(f"--trials must be a multiple of {BATCH}")
    if OPTUNA.keys() & set(options.contenders) and not options.optuna_python.exists():
        parser.error(f"{options.optuna_python} is missing: `make bench-setup`, or --contenders")
    return options


if __name__ == "__main__":
    sys.exit(main())

"""What an evaluation costs with prepared performance tables, against the engine's own.

    python benchmarks/replay_setup.py --runs 7

CPU seconds of a warm child on one core, everything included: launch configuration, capacity, replay
and report. Plain and prepared take turns in one process, so that whatever else the machine does
meets both; the medians are compared. The exit code is 1 if a report differs by a bit or the first
ratio is above its goal.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # For `support`.

from support.engine_samples import agg, disagg, minimax, request, synthetic

from schemas.messages import EvaluationRequest
from spica_async.engine.evaluation import evaluate, warm_up

GOAL = 0.75
LOAD = synthetic(isl=1024, osl=256, requests=640, concurrency=64)
SAMPLES = {
    "Qwen3-32B h200 vllm, 2 x TP2": agg(),
    "Qwen3-32B h200 vllm, 2 x TP2 + 1 x TP4": disagg(),
    "MiniMax-M2.5 b200 vllm, 8 x TEP4": minimax(),
}


def cpu_seconds(asked: EvaluationRequest, *, prepared: bool) -> tuple[float, dict[str, float]]:
    """CPU seconds of one evaluation, and its report."""
    started = time.process_time()
    measured = evaluate(asked, prepared=prepared)
    spent = time.process_time() - started
    assert measured.report is not None, measured.detail
    return spent, measured.report


def main() -> None:
    """Print one line for each deployment."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=5, help="evaluations of each kind")
    parser.add_argument("--core", type=int, help="the core to stay on; the last one by default")
    arguments = parser.parse_args()
    allowed = os.sched_getaffinity(0)
    core = max(allowed) if arguments.core is None else arguments.core
    os.sched_setaffinity(0, {core})
    warm_up()
    table = Table(title=f"CPU s per warm evaluation of {LOAD.requests} requests, core {core}")
    for column in ("deployment", "first ours", "first plain", "plain", "ours", "ratio", "reports"):
        table.add_column(column)
    ratios, alike = [], True
    for name, sample in SAMPLES.items():
        asked = request(sample, LOAD)
        first_ours, _ = cpu_seconds(asked, prepared=True)
        first_plain, _ = cpu_seconds(asked, prepared=False)
        spent: dict[bool, list[float]] = {True: [], False: []}
        reports = []
        for _ in range(arguments.runs):
            for prepared in (False, True):
                seconds, report = cpu_seconds(asked, prepared=prepared)
                spent[prepared].append(seconds)
                reports.append(report)
        same = all(report == reports[0] for report in reports)
        plain, ours = (statistics.median(spent[prepared]) for prepared in (False, True))
        ratios.append(ours / plain)
        alike = alike and same
        table.add_row(
            name,
            f"{first_ours:.2f}",
            f"{first_plain:.2f}",
            f"{plain:.3f}",
            f"{ours:.3f}",
            f"{ours / plain:.2f}",
            "identical" if same else "DIFFER",
        )
    Console(width=140).print(table)
    sys.exit(0 if alike and ratios[0] <= GOAL else 1)


if __name__ == "__main__":
    main()

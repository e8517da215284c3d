"""What the first evaluations of a branch find with and without a warm start.

    taskset -c 0 python benchmarks/warm_start.py
    taskset -c 0 python benchmarks/warm_start.py --evaluations 12 --seeds 1 2 3

Each branch evaluates so many distinct samples, as a search does before its optimizer has learned
anything: the middle of its space, then its seeds if it has a warm start, then the quasi-random
draws of each random seed. Replays are real; each sample is replayed once. Takes about two minutes
on one core.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from schemas.config import SmartSearchConfig
from schemas.messages import EvaluationRequest
from spica_async.engine import evaluation, runtime
from spica_async.evaluate.loads import load_of
from spica_async.judge.scoring import score_report
from spica_async.judge.verdict import study_objectives
from spica_async.optimizer.assignments import centre
from spica_async.optimizer.quasi_random import draw
from spica_async.optimizer.types import Study
from spica_async.plan.process import make_plan
from spica_async.plan.types import SweepPlan
from spica_async.search.branches import sample_context
from spica_async.space.branch import BranchSpace, Selection
from spica_async.space.sample import resolve_kv_load, sample_key, unroll_sample

ROOT = Path(__file__).parents[1]
MOE = {
    "search_space": {
        "model_name": "MiniMaxAI/MiniMax-M2.5",
        "hardware_sku": "b200_sxm",
        "backend": ["vllm"],
        "deployment_mode": ["disagg"],
        "gpu_budget": 16,
        "context_length": 8192,
        "router_mode": ["round_robin"],
        "planner_scaling_policy": ["disabled"],
    },
    "workload": {"isl": 1024, "osl": 256, "concurrency": 64, "num_request_ratio": 4},
    "goal": {"target": "throughput_per_gpu"},
}
# What is tried beyond this was tried before.
MOST_TRIES = 200

console = Console(width=140)


@dataclass
class Branch:
    """One branch whose samples are replayed here, each once."""

    name: str
    plan: SweepPlan
    space: BranchSpace
    scores: dict[str, float | None] = field(default_factory=dict)
    replaying_seconds: float = 0.0

    def best(self, selections: Iterator[Selection], evaluations: int) -> float:
        """The best score of the first distinct samples that can be replayed."""
        found: dict[str, float] = {}
        for selection in islice(selections, MOST_TRIES):
            key, score = self._evaluate(selection)
            if score is not None:
                found[key] = score
            if len(found) == evaluations:
                break
        return max(found.values())

    def draws(self, seed: int) -> Iterator[Selection]:
        """What quasi-random search proposes."""
        study = Study(
            self.space.mode,
            seed,
            self.space.parameters,
            study_objectives(self.plan.config.goal),
        )
        for number in count(1):
            yield self.space.select(draw(study, number))[0]

    @property
    def middle(self) -> Selection:
        """What is tried first in any case."""
        return self.space.select(centre(self.space.parameters))[0]

    def _evaluate(self, selection: Selection) -> tuple[str, float | None]:
        context, config = sample_context(self.plan), self.plan.config
        sample = unroll_sample(context, selection)
        resolved = resolve_kv_load(context, selection, sample)
        key = sample_key(resolved.sample)
        if key not in self.scores:
            began = time.process_time()
            request = EvaluationRequest(
                evaluation_id=self.space.mode,
                sweep_id="benchmark",
                sample=resolved.sample,
                load=load_of(config, None, resolved.sample),
                sla=config.goal.sla,
            )
            report = None
            if resolved.no_kv_room is None:
                report = evaluation.evaluate(request).report
            self.scores[key] = None if report is None else score_report(report, config.goal)
            self.replaying_seconds += time.process_time() - began
        return key, self.scores[key]


def branches() -> Iterator[Branch]:
    """The branches of the example to start with, and one of a model with experts."""
    quickstart = yaml.safe_load((ROOT / "examples" / "quickstart.yaml").read_text())
    for name, document in (("Qwen3-32B, 8 GPUs", quickstart), ("MiniMax-M2.5, 16 GPUs", MOE)):
        plan = asyncio.run(_plan(document))
        for space in plan.branches:
            yield Branch(f"{name}, {space.mode}", plan, space)


async def _plan(document: dict[str, Any]) -> SweepPlan:
    config = SmartSearchConfig.model_validate(document)
    # A budget that would cover the branch leaves no study to warm up.
    sweep = config.sweep.model_copy(update={"max_rounds": 1, "warm_start": True})
    return await make_plan(config.model_copy(update={"sweep": sweep}), None, lambda _: None)


def main() -> int:
    """Compare both ways of starting, branch by branch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--evaluations", type=int, default=8)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    options = parser.parse_args()
    runtime.prepare()
    table = Table(title=f"best of the first {options.evaluations} evaluations, tok/s/GPU")
    for heading in ("branch", "middle alone", "cold: median (worst - best)", "warm: the same"):
        table.add_column(heading)
    for heading in ("warm / cold", "replays", "CPU s"):
        table.add_column(heading, justify="right")
    for branch in branches():
        cold, warm = [], []
        for seed in options.seeds:
            start = [branch.middle]
            seeds = branch.plan.seeds[branch.space.mode]
            cold.append(branch.best(chain(start, branch.draws(seed)), options.evaluations))
            warm.append(branch.best(chain(start, seeds, branch.draws(seed)), options.evaluations))
        table.add_row(
            branch.name,
            f"{branch.best(iter([branch.middle]), 1):.0f}",
            _spread(cold),
            _spread(warm),
            f"{statistics.median(warm) / statistics.median(cold):.2f}",
            str(len(branch.scores)),
            f"{branch.replaying_seconds:.0f}",
        )
    console.print(table)
    return 0


def _spread(scores: list[float]) -> str:
    return f"{statistics.median(scores):.0f} ({min(scores):.0f} - {max(scores):.0f})"


if __name__ == "__main__":
    sys.exit(main())

"""What confirming is worth: how good the winner is, and how much worse than it is said to be.

    python benchmarks/trust.py
    python benchmarks/trust.py --measure results/pool.jsonl

Only the replays are played: the search, the replays that it makes again and the ranking are the
program's own. Scores come from two sources. The first is a space of 243 candidates whose mean
scores are known, with normal noise of 0, 2, 10 and 30 % of the mean. The second is what the engine
answered to 32 deployments under examples/traces/bursty.jsonl, kept in `replays/planner.json`: up
to 36 replays of each, of which every sweep draws its own.

A sweep that is confirmed is held against three that are not. `unconfirmed` has the same candidates,
once each. The others make as many replays as the confirmed one: `more` measures that many
candidates once; `three each` a third of them, three times each, and takes the mean. Each believes
its best value, as optimizers believe their best trial. Candidates are drawn at random, without an
optimizer: what is compared is how to measure, and more candidates are worth more here than under
one that learns.

`--measure` replays the 32 deployments of `replays/planner.json` anew and adds to a file of JSON
lines (an hour and a half). The exit code is 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import combinations, product
from math import prod
from pathlib import Path
from statistics import fmean, stdev
from typing import Final

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # For `support`.

from support.planning import plan
from support.searching import run_search

from schemas.goal import SLATarget
from schemas.messages import EvaluationRequest, Measurement, Sample, TraceLoad
from schemas.results import RankedCandidate
from spica_async.judge.ranking import ranking

ROOT: Final = Path(__file__).parents[1]
POOL: Final = Path(__file__).with_name("replays") / "planner.json"
TRACE: Final = ROOT / "examples" / "traces" / "bursty.jsonl"
SLA: Final = SLATarget(ttft_ms=2000, itl_ms=50)

NOISES: Final = (0.0, 0.02, 0.1, 0.3)
SEEDS: Final = range(20)
# Names only: scores are by number.
SPACE: Final = {
    "agg_max_num_batched_tokens": [8192, 16384, 32768],
    "agg_max_num_seqs": [256, 512, 1024],
    "overlap_score_credit": [0.0, 0.5, 1.0],
    "prefill_load_scale": [0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0],
}
POOL_SPACE: Final = {
    "router_temperature": [0.0, 0.2, 0.5, 1.0],
    "prefill_load_scale": [0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0],
}
BUDGET: Final = 64
POOL_REPLAYS: Final = 36
WAYS: Final = ("confirmed", "unconfirmed", "more", "three each")
ALIKE: Final = 0.998
"""What is at least so much of another is no worse: the kept replays cannot tell these apart."""
_BATCH: Final = 8
_ROUNDING: Final = 1e-9

Draw = Callable[[int], float]
"""The score of one more replay of a candidate."""

console = Console(width=130)


@dataclass(frozen=True, slots=True)
class Choice:
    """What a sweep says is best.

    Attributes:
        candidate: its number.
        score: what it is said to score.
        replays: all that were made.
        ranking: those of the best few whose means are known.
    """

    candidate: int
    score: float
    replays: int
    ranking: Sequence[RankedCandidate]


@dataclass(frozen=True)
class Scores:
    """Candidates with known means.

    Attributes:
        knobs: the choices whose combinations are the candidates.
        means: of each candidate.
        source: by a seed, what one more replay of a candidate scores.
    """

    knobs: Mapping[str, Sequence[float]]
    means: Sequence[float]
    source: Callable[[int], Draw]

    def number(self, sample: Sample) -> int:
        """Which candidate a sample is, in the order of all combinations."""
        return self._numbers[tuple(sample[knob] for knob in self.knobs)]

    @cached_property
    def _numbers(self) -> dict[tuple[object, ...], int]:
        return {choices: number for number, choices in enumerate(product(*self.knobs.values()))}


def normal_scores(noise: float) -> Scores:
    """A few candidates are far better than most; noise is a part of the mean."""
    means = list(100 * np.random.default_rng(0).beta(2, 4, prod(map(len, SPACE.values()))))

    def source(seed: int) -> Draw:
        rng = np.random.default_rng([1, seed])
        return lambda number: means[number] * max(0.01, 1 + noise * rng.standard_normal())

    return Scores(SPACE, means, source)


def kept_scores(replays: Sequence[Sequence[float]]) -> Scores:
    """What the engine answered, in another order for each seed."""

    def source(seed: int) -> Draw:
        rng = random.Random(seed)  # noqa: S311  # no secret
        order = [iter(rng.sample(values, len(values)) * POOL_REPLAYS) for values in replays]
        return lambda number: next(order[number])

    return Scores(POOL_SPACE, [fmean(values) for values in replays], source)


def sweep(
    scores: Scores, seed: int, *, candidates: int, times: int = 1, **confirm: object
) -> Choice:
    """Search so many candidates, each measured so many times before it is heard of."""
    draw = scores.source(seed)

    def measure(sample: Sample) -> Measurement:
        number = scores.number(sample)
        value = fmean(draw(number) for _ in range(times))
        return Measurement(outcome="feasible", report={"output_throughput_tok_s": value})

    planned = plan(
        {
            "parallel_configs": [{"tp": 4, "replicas": 1}],
            "router_mode": ["kv_router"],
            "agg_max_num_batched_tokens": [8192],
            "agg_max_num_seqs": [256],
            "overlap_score_credit": [1.0],
            "router_temperature": [0.0],
            **scores.knobs,
        },
        goal={"target": "throughput"},
        confirm=confirm,
        sweep={
            "max_rounds": -(-candidates // _BATCH),
            "candidates_per_round": min(_BATCH, candidates),
            "parallel_evals": _BATCH,
            "random_seed": seed,
        },
    )
    run = asyncio.run(run_search(planned, slots=_BATCH, measure=measure, enumerate_points=True))
    search, goal = run.search, planned.config.goal
    ranked = ranking(search.candidates, goal, confirmed=search.confirmed, most=10)
    return Choice(
        candidate=scores.number(ranked[0].config),
        score=ranked[0].score,
        replays=times * len(run.worker.requests),
        ranking=[entry for entry in ranked if entry.confirmed],
    )


@dataclass(frozen=True, slots=True)
class Contest:
    """What sweeps choose with each way to measure, one for each seed."""

    scores: Scores
    choices: Mapping[str, Sequence[Choice]]

    @classmethod
    def held(cls, name: str, scores: Scores, budget: int) -> Contest:
        """Search with every seed in every way; shows how far it has come."""
        found: dict[str, list[Choice]] = {way: [] for way in WAYS}
        for seed in track(SEEDS, name, console=console, transient=True):
            confirmed = sweep(scores, seed, candidates=budget, loads=[1.0])
            replays = confirmed.replays
            choices = (
                confirmed,
                sweep(scores, seed, candidates=budget, enabled="off"),
                sweep(scores, seed, candidates=min(replays, len(scores.means)), enabled="off"),
                sweep(scores, seed, candidates=replays // 3, times=3, enabled="off"),
            )
            for way, choice in zip(WAYS, choices, strict=True):
                found[way].append(choice)
        return cls(scores, found)

    def means(self, way: str) -> list[float]:
        """The mean scores of what was chosen."""
        return [self.scores.means[choice.candidate] for choice in self.choices[way]]

    def regret(self, way: str) -> float:
        """How much less than the best there is, as a part of it."""
        return 1 - fmean(self.means(way)) / max(self.scores.means)

    def overstated(self, way: str) -> float:
        """By what part of its mean a winner is said to be better than it is."""
        pairs = zip(self.choices[way], self.means(way), strict=True)
        return fmean(choice.score / mean - 1 for choice, mean in pairs)

    def covered(self) -> tuple[int, int]:
        """How many intervals of confirmed ones hold the mean, and how many there are."""
        found = []
        for entry in self._confirmed():
            low, high = entry.interval or (-math.inf, math.inf)
            mean = self.scores.means[self.scores.number(entry.config)]
            found.append(low - _ROUNDING <= mean <= high + _ROUNDING)
        return sum(found), len(found)

    def contradictions(self) -> tuple[int, int]:
        """Pairs that two sweeps rank in opposite ways by groups, and all pairs that both rank."""
        sweeps = [
            {self.scores.number(entry.config): entry.group for entry in choice.ranking}
            for choice in self.choices["confirmed"]
        ]
        opposite = pairs = 0
        for one, other in combinations(sweeps, 2):
            for first, second in combinations(sorted(one.keys() & other.keys()), 2):
                pairs += 1
                opposite += (one[first] - one[second]) * (other[first] - other[second]) < 0
        return opposite, pairs

    def _confirmed(self) -> Iterator[RankedCandidate]:
        for choice in self.choices["confirmed"]:
            yield from choice.ranking


def main() -> int:
    """Print the tables, and tell whether the goals are met."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--measure", type=Path, metavar="FILE", help="replay the pool, and end")
    given = options.parse_args()
    kept = json.loads(POOL.read_text())
    if given.measure is not None:
        measure_again([entry["sample"] for entry in kept], given.measure)
        return 0

    table = Table(
        "scores",
        "replays",
        *WAYS,
        *WAYS,
        title=f"Winners of {len(SEEDS)} seeds: less than the best there is, and more than they are",
    )
    contests = {
        f"noise of {noise:.0%}": Contest.held(f"{noise:.0%}", normal_scores(noise), BUDGET)
        for noise in NOISES
    }
    replays = [entry["goodput_per_gpu"] for entry in kept]
    contests["planner"] = planner = Contest.held("planner", kept_scores(replays), len(replays))
    for name, contest in contests.items():
        table.add_row(
            name,
            f"{fmean(choice.replays for choice in contest.choices['confirmed']):.0f}",
            *(f"-{contest.regret(way):.1%}" for way in WAYS),
            *(f"{contest.overstated(way):+.1%}" for way in WAYS),
        )
    console.print(table)
    spreads = sorted(stdev(values) / fmean(values) for values in replays if len(values) > 1)
    shown = ", ".join(f"{spread:.1%}" for spread in spreads)
    console.print(f"planner: standard deviations of the {len(spreads)} that have any: {shown}")
    verdicts = [*_intervals(contests), *_winners(planner)]
    for text, is_met in verdicts:
        console.print(f"{text}: {'[green]met[/]' if is_met else '[red]missed[/]'}")
    return 0 if all(is_met for _, is_met in verdicts) else 1


def _intervals(contests: Mapping[str, Contest]) -> Iterator[tuple[str, bool]]:
    for name, contest in contests.items():
        held, intervals = contest.covered()
        text = f"{name}: {held} of {intervals} intervals hold the mean, at least 90 %"
        yield text, held >= 0.9 * intervals
        opposite, pairs = contest.contradictions()
        text = f"{name}: {opposite} of {pairs} pairs in opposite order in two sweeps, at most 5 %"
        yield text, opposite <= 0.05 * pairs


def _winners(contest: Contest) -> Iterator[tuple[str, bool]]:
    ours, theirs = contest.means("confirmed"), contest.means("unconfirmed")
    good = sum(one >= ALIKE * other for one, other in zip(ours, theirs, strict=True))
    text = f"planner: the winner is no worse than unconfirmed in {good} of {len(ours)}, at least 18"
    yield text, good >= 18
    text = f"planner: winners score {fmean(ours):.2f}, unconfirmed ones {fmean(theirs):.2f}"
    yield text, fmean(ours) >= fmean(theirs)


def measure_again(samples: Sequence[Sample], target: Path) -> None:
    """Replay each sample as often as the pool has it, and add a line for each replay."""
    from spica_async.engine.evaluation import (  # noqa: PLC0415  # seconds, and rarely wanted
        evaluate,
        warm_up_with_planner,
    )
    from spica_async.space.sample import is_noisy  # noqa: PLC0415

    body = TRACE.read_bytes()
    rows = [json.loads(line) for line in body.splitlines()]
    load = TraceLoad(
        path=str(TRACE),
        sha256=sha256(body).hexdigest(),
        size_bytes=len(body),
        requests=len(rows),
        total_tokens=sum(row["input_length"] + row["output_length"] for row in rows),
    )
    warm_up_with_planner()
    with target.open("a") as lines:
        for time in track(range(POOL_REPLAYS), "replays of each", console=console):
            for number, sample in enumerate(samples):
                if time and not is_noisy(sample):
                    continue
                request = EvaluationRequest(
                    evaluation_id="pool", sweep_id="pool", sample=sample, load=load, sla=SLA
                )
                line = {"number": number, "report": evaluate(request).report}
                lines.write(json.dumps(line) + "\n")
                lines.flush()


if __name__ == "__main__":
    sys.exit(main())

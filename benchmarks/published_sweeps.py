"""The three published sweeps on a real trace, in one table each.

    python benchmarks/published_sweeps.py planner router pareto --rounds 2

`planner` and `router` replay the conversation trace of Mooncake (`SPICA_TRACES`, else
`../shared/traces`); `pareto` is synthetic. Compare shapes with the published figures, not digits:
they come from another engine version, and the planner's from another trace.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
TRACE = "conversation_trace.jsonl"
ROUTER_REQUESTS = 2000

console = Console(width=140)


def trace_copy(folder: Path, requests: int | None) -> Path:
    """The first requests of the real trace, or all of them."""
    traces = Path(os.environ.get("SPICA_TRACES", ROOT.parent / "shared" / "traces"))
    if not (traces / TRACE).exists():
        raise SystemExit(f"{traces / TRACE} is not there: set SPICA_TRACES")
    copy = folder / "trace.jsonl"
    with (traces / TRACE).open() as source, copy.open("w") as target:
        target.writelines(itertools.islice(source, requests))
    return copy


def run(example: str, *, rounds: int | None = None, requests: int | None = None) -> dict[str, Any]:
    """Run one example, its trace replaced by the real one, and return the result document."""
    document = yaml.safe_load((ROOT / "examples" / example).read_text())
    if rounds is not None:
        document["sweep"]["max_rounds"] = rounds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "trace_path" in document["workload"]:
            document["workload"]["trace_path"] = str(trace_copy(folder, requests))
        (folder / "sweep.yaml").write_text(yaml.safe_dump(document))
        command = [sys.executable, "-m", "spica_async", "run", "sweep.yaml", "--json"]
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, check=True)  # noqa: S603  # our own command
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def told(result: dict[str, Any]) -> str:
    """Where the time of a sweep went."""
    timings, tally = result["timings"], result["tally"]
    return (
        f"{timings['total']:.0f} s for {tally['feasible']} candidates of {tally['attempts']} "
        f"suggestions; optimizer {timings['optimizer']:.0f} s, "
        f"replay {timings['evaluations']:.0f} s"
    )


def planner(rounds: int | None) -> None:
    """Goodput per GPU of each policy family, and of the two baselines."""
    result = run("planner-goodput.yaml", rounds=rounds)
    table = Table(title=f"planner: {told(result)}")
    for column in ("policy", "candidates", "goodput/GPU, best", "worst", "GPUs of the best"):
        table.add_column(column)
    by_policy: dict[str, list[Any]] = {}
    for candidate in result["ranking"]:
        by_policy.setdefault(candidate["config"]["planner_scaling_policy"], []).append(candidate)
    for policy, group in by_policy.items():
        table.add_row(policy, str(len(group)), *_goodput(group[0], group[-1]))
    for name in ("static", "default"):
        (baseline,) = run(f"planner-{name}.yaml")["ranking"]
        table.add_row(f"baseline {name}", "1", *_goodput(baseline, baseline))
    console.print(table)


def _goodput(best: dict[str, Any], worst: dict[str, Any]) -> tuple[str, str, str]:
    gpus = best["metrics"]["gpu_hours"] / (best["metrics"]["duration_ms"] / 3_600_000)
    return f"{best['score']:.1f}", f"{worst['score']:.1f}", f"{gpus:.1f}"


def router(rounds: int | None) -> None:
    """Mean end-to-end latency by router settings."""
    result = run("router-latency.yaml", rounds=rounds, requests=ROUTER_REQUESTS)
    table = Table(title=f"router: {told(result)}")
    for column in ("mean e2e ms", "router", "overlap", "prefill load scale", "temperature"):
        table.add_column(column)
    for candidate in result["ranking"]:
        config = candidate["config"]
        names = ("overlap_score_credit", "prefill_load_scale", "router_temperature")
        weights = [str(config.get(name, "-")) for name in names]
        table.add_row(f"{-candidate['score']:.1f}", config["router_mode"], *weights)
    console.print(table)


def pareto(rounds: int | None) -> None:
    """The frontier, from slow and efficient to fast."""
    result = run("pareto-disagg.yaml", rounds=rounds)
    table = Table(title=f"pareto: {told(result)}")
    for column in ("tok/s/GPU", "tok/s/user", "GPUs", "prefill", "decode", "in flight"):
        table.add_column(column)
    for candidate in result["ranking"]:
        config, objectives = candidate["config"], candidate["objectives"]
        shapes = [
            f"{config[f'{role}_replicas']} x {config[f'{role}_strategy']} "
            f"{config[f'{role}_tp'] * config[f'{role}_attention_dp']}"
            for role in ("prefill", "decode")
        ]
        table.add_row(
            f"{objectives['throughput_per_gpu']:.1f}",
            f"{objectives['throughput_per_user']:.1f}",
            str(candidate["used_gpus"]),
            *shapes,
            str(config["concurrency"]),
        )
    console.print(table)


def main() -> None:
    """Run the named sweeps."""
    sweeps = {"planner": planner, "router": router, "pareto": pareto}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("sweeps", nargs="*", default=list(sweeps), metavar="SWEEP")
    parser.add_argument("--rounds", type=int, help="instead of the example's own")
    arguments = parser.parse_args()
    unknown = set(arguments.sweeps) - set(sweeps)
    if unknown:
        parser.error(f"no such sweep: {', '.join(sorted(unknown))}; there are {', '.join(sweeps)}")
    for name in arguments.sweeps:
        sweeps[name](arguments.rounds)


if __name__ == "__main__":
    main()

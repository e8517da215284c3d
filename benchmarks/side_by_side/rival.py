"""The rival: the installed `aisimulate recommend`, run as a program and read by its files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from side_by_side.contest import Contest
from side_by_side.outcome import Outcome, Parts
from side_by_side.process_tree import Span
from side_by_side.quality import Found
from side_by_side.recording import Recording, UnreadableRunError, record
from spica_async.report.deployment_text import deployment

_STACK: Final = "dynamo"
"""It has an engine of its own for loads without router and planner; ours knows Dynamo's alone."""
_EVENTS = "out/execution-events.jsonl"
_RECORDING = "recording.json"
_CONFIGURATION = "sweep.yaml"


def run(contest: Contest, folder: Path, *, core: int) -> None:
    """Let it search in a folder, which is made, and leave there what `read` reads.

    Raises:
        TraceMissingError: if the sweep needs the real trace and that is not there.
    """
    configuration = contest.prepare("rival", folder)
    (folder / _CONFIGURATION).write_text(yaml.safe_dump(configuration), encoding="utf-8")
    program = Path(sys.executable).with_name("aisimulate")
    recording = record(
        [
            *(str(program), "recommend", "--config", _CONFIGURATION, "--stack", _STACK),
            *("--output-dir", "out", "--format", "json"),
        ],
        core=core,
        folder=folder,
        watched=_EVENTS,
        environ={},
    )
    recording.save(folder / _RECORDING)


def read(contest: Contest, folder: Path) -> Outcome:
    """What it came to.

    Its files hold no times. But it evaluates one candidate after the other on one core, each in a
    process of its own, so the candidates' processes tell when they were measured.

    Raises:
        UnreadableRunError: if it failed, or processes and candidates do not match.
    """
    recording = Recording.load(folder / _RECORDING)
    recording.check(folder)
    evaluated = _evaluated(folder)
    configuration = yaml.safe_load((folder / _CONFIGURATION).read_text(encoding="utf-8"))
    spans = recording.sightings.spans
    main = next(span for span in spans if "aisimulate.resource_worker" in span.command)
    workers = [span for span in spans if "multiprocessing.spawn" in span.command]
    if len(workers) != len(evaluated):
        raise UnreadableRunError(
            f"{folder}: {len(workers)} processes for {len(evaluated)} candidates"
        )
    replays = [_replay_seconds(one, span) for one, span in zip(evaluated, workers, strict=True)]
    first = workers[0].began
    search_seconds = workers[-1].ended - first
    starts = main.cpu_at(first) + sum(span.cpu_total for span in workers) - sum(replays)
    optimizer = main.cpu_total - main.cpu_at(first)
    return Outcome(
        recording=recording,
        found=[
            Found(span.ended, _objectives(contest, one), deployment(one["config"]))
            for one, span in zip(evaluated, workers, strict=True)
            if one["status"] == "feasible"
        ],
        evaluated=len({json.dumps(one["config"], sort_keys=True) for one in evaluated}),
        suggestions=configuration["optimizer"]["max_trials"],
        busy_share=sum(span.ended - span.began for span in workers) / search_seconds,
        parts=Parts(
            starts=starts,
            compiling=0.0,
            planning=0.0,
            optimizer=optimizer,
            replays=sum(replays),
            rest=max(0.0, recording.cpu_seconds - starts - optimizer - sum(replays)),
        ),
    )


def _evaluated(folder: Path) -> list[dict[str, Any]]:
    """What it tells of each candidate that it replayed, in the order in which they ended."""
    lines = (folder / _EVENTS).read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    return [event["value"] for event in events if event["event"] == "candidate_completed"]


def _objectives(contest: Contest, candidate: dict[str, Any]) -> tuple[float, ...]:
    metrics = candidate["metrics"]
    read = {
        "throughput_per_gpu": lambda: metrics["output_throughput_tok_s"] / candidate["used_gpus"],
        "throughput_per_user": lambda: metrics["mean_output_token_throughput_per_user"],
        "e2e_latency": lambda: metrics["mean_e2e_latency_ms"],
    }
    return tuple(float(read[objective]()) for objective in contest.objectives)


def _replay_seconds(candidate: dict[str, Any], process: Span) -> float:
    """CPU seconds of the replay alone: its share of the time that its process was there."""
    if candidate["status"] != "feasible":
        return 0.0
    share: float = candidate["metrics"]["wall_time_ms"] / 1000 / (process.ended - process.began)
    return min(1.0, share) * process.cpu_total

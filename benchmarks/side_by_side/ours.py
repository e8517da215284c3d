"""Our side: `spica-async run`, run as a program and read by its results folder."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from schemas.config import SweepControl
from schemas.results import CandidateRecord, SweepResult, SweepTimings
from side_by_side.contest import ROOT, Contest, rounds_for
from side_by_side.outcome import Outcome, Parts
from side_by_side.process_tree import Span
from side_by_side.quality import Found
from side_by_side.recording import Recording, UnreadableRunError, record
from spica_async.report.deployment_text import deployment

_CANDIDATES = "out/*/candidates.jsonl"
_RECORDING = "recording.json"
_PLANNING: Final = "spica_async.plan.child"
_SAMPLER: Final = "spica_async.optimizer.child"
_REPLAYS: Final = "workers.child"


def run(
    contest: Contest,
    folder: Path,
    *,
    core: int,
    budget: int,
    cache: Path,
    sweep: Mapping[str, Any],
) -> None:
    """Let it search in a folder, which is made, and leave there what `read` reads.

    Args:
        contest: what to search.
        folder: where.
        core: the only one to use.
        budget: unique candidates to evaluate at most, shared evenly among the branches; what even
            rounds cannot hold is left over.
        cache: stands for the user's cache folder.
        sweep: settings of the `sweep` block beside those of the contest.

    Raises:
        TraceMissingError: if the sweep needs the real trace and that is not there.
    """
    configuration = contest.prepare("ours", folder)
    block = {**configuration["sweep"], **sweep}
    schedule = SweepControl.model_validate(block).schedule
    rounds, per_round = rounds_for(budget // contest.branches, schedule)
    configuration["sweep"] = {"max_rounds": rounds, "candidates_per_round": per_round, **block}
    # The rival measures everything once.
    configuration["confirm"] = {"enabled": "off"}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(configuration), encoding="utf-8")
    recording = record(
        [sys.executable, "-m", "spica_async", "run", "sweep.yaml", "--output", "out", "--json"],
        core=core,
        folder=folder,
        watched=_CANDIDATES,
        environ={"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(cache)},
    )
    recording.save(folder / _RECORDING)


def read(contest: Contest, folder: Path) -> Outcome:
    """What it came to.

    Raises:
        UnreadableRunError: if it failed, or its processes are not those that are known here.
    """
    recording = Recording.load(folder / _RECORDING)
    recording.check(folder)
    result = SweepResult.model_validate_json((folder / "stdout").read_bytes())
    (path,) = folder.glob(_CANDIDATES)
    lines = path.read_text(encoding="utf-8").splitlines()
    records = [CandidateRecord.model_validate_json(line) for line in lines]
    if len(recording.line_seconds) != len(records):
        raise UnreadableRunError(f"{folder}: not every line of {path.name} was seen to come")
    arrivals = list(zip(recording.line_seconds, records, strict=True))
    return Outcome(
        recording=recording,
        found=[
            Found(seconds, _objectives(contest, one), deployment(one.config))
            for seconds, one in arrivals
            if one.outcome == "feasible"
        ],
        evaluated=len(records),
        suggestions=result.tally.attempts,
        busy_share=result.timings.evaluations / result.timings.search,
        parts=_parts(recording, result.timings, arrivals),
    )


def _objectives(contest: Contest, candidate: CandidateRecord) -> tuple[float, ...]:
    assert candidate.objectives is not None  # It is feasible.
    return tuple(candidate.objectives[objective] for objective in contest.objectives)


def _parts(
    recording: Recording,
    timings: SweepTimings,
    arrivals: Sequence[tuple[float, CandidateRecord]],
) -> Parts:
    spans = recording.sightings.spans
    coordinator, first_child = spans[:2]
    coordinator_start = coordinator.cpu_at(first_child.began)
    # One core makes one slot, whose child takes its first request when the first candidate's
    # evaluation begins; before that it only starts.
    workers = _running(spans, _REPLAYS)
    first_request = next(
        seconds - one.timings.wall for seconds, one in arrivals if one.timings is not None
    )
    worker_starts = sum(span.cpu_at(first_request) for span in workers)
    samplers = sum(span.cpu_total for span in _running(spans, _SAMPLER))
    sampler_starts, compiling = sampler_once(samplers, timings)
    planning = sum(span.cpu_total for span in _running(spans, _PLANNING))
    optimizer = samplers - sampler_starts - compiling
    replays = sum(span.cpu_total for span in workers) - worker_starts
    starts = coordinator_start + worker_starts + sampler_starts
    told = starts + compiling + planning + optimizer + replays
    return Parts(
        starts=starts,
        compiling=compiling,
        planning=planning,
        optimizer=optimizer,
        replays=replays,
        rest=max(0.0, recording.cpu_seconds - told),
    )


def sampler_once(cpu_seconds: float, timings: SweepTimings) -> tuple[float, float]:
    """CPU seconds that optimizer processes took to start and to compile.

    They tell how long that took by the clock, while replays shared the core with them. So their
    CPU time is split as their time was. A process tells of itself with its first answer: without
    one, it only started.

    Args:
        cpu_seconds: all that these processes used.
        timings: of their sweep.
    """
    ahead = timings.compiling - timings.compile_waits
    busy = timings.optimizer_starts + timings.optimizer + ahead
    if busy == 0:
        return cpu_seconds, 0.0
    share = min(1.0, cpu_seconds / busy)
    return timings.optimizer_starts * share, timings.compiling * share


def _running(spans: Sequence[Span], module: str) -> list[Span]:
    return [span for span in spans if module in span.command.split()]

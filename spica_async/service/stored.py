"""The daemon's answers about sweeps that it does not run, from the journal and their folders."""

from __future__ import annotations

import asyncio
import re
from array import array
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Final, cast, get_args

from pydantic import JsonValue, TypeAdapter, ValidationError

from schemas.daemon import (
    BranchProgress,
    CandidatePage,
    StoredState,
    SweepDetail,
    SweepState,
    SweepSummary,
)
from schemas.goal import OptimizationGoal
from schemas.journal import SWEEP_FACT, Ended, ListedSweep, Stopped
from schemas.messages import MAX_ARTIFACT_BYTES
from schemas.results import CandidateRecord
from spica_async.errors import SpicaError, file_problem
from spica_async.journal.port import Journal, SweepRow
from spica_async.judge.ranking import artifact_path
from spica_async.processes.threads import DaemonThreads, in_threads
from spica_async.service.port import ArtifactUnknownError
from spica_async.service.watch import SweepWatch

_STATES: Final = frozenset(get_args(StoredState))
_CONFIG: TypeAdapter[dict[str, JsonValue]] = TypeAdapter(dict[str, JsonValue])
_INDEXED_FILES: Final = 64
_PAGE_SECONDS: Final = 10.0
_CANDIDATE_ID: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
# Of their own: pages of a disk that hangs keep no trace from being read.
_PAGES: Final = DaemonThreads(4, "pages")

_UNREAD: Final = "cannot be read by this version"

SHOWN: Final = 10
"""Of a ranking; of a front all are shown."""


def state_of(status: str) -> SweepState:
    """The state that a daemon shows for a status of the journal."""
    return cast("StoredState", status) if status in _STATES else "unreadable"


def listed_of(row: SweepRow) -> ListedSweep | None:
    """What a list shows of a sweep; None: another version has written it, in its own way."""
    try:
        return ListedSweep.model_validate_json(row.summary)
    except ValidationError:
        return None


def summary_of(row: SweepRow) -> SweepSummary:
    """A sweep as a list shows it, whatever of it can be read."""
    listed = listed_of(row) or ListedSweep(reason=f"its summary {_UNREAD}")
    state = state_of(row.status)
    if state == "unreadable":
        listed = listed.model_copy(update={"reason": f"its state {row.status!r} {_UNREAD}"})
    return SweepSummary(
        sweep_id=row.sweep_id,
        state=state,
        priority=row.priority,
        submitted_at=datetime.fromtimestamp(row.submitted_at, UTC),
        model=listed.model,
        hardware=listed.hardware,
        target=listed.target,
        budget=listed.per_branch * listed.branches,
        feasible=listed.feasible,
        best_score=listed.best_score,
        reason=None if row.status in {"queued", "running"} else listed.reason,
        runner=row.owner if row.lease_seconds > 0 else None,
    )


async def detail_of(journal: Journal, row: SweepRow) -> SweepDetail:
    """A sweep as its last run has left it, as far as that can be read.

    Raises:
        StorageError: the journal cannot be had.
    """
    detail = _bare_detail(row)
    recorded = await journal.latest(row.sweep_id, ["ended", "stopped"])
    if recorded is None:
        return detail
    try:
        fact = SWEEP_FACT.validate_json(recorded.fact.body)
    except ValidationError:
        return detail.model_copy(update={"reason": f"its fact {recorded.number} {_UNREAD}"})
    if not isinstance(fact, Ended | Stopped):
        return detail
    result = fact.result
    if result is None:
        return detail.model_copy(update={"elapsed_seconds": fact.at})
    return detail.model_copy(
        update={
            "elapsed_seconds": fact.at,
            "tally": result.tally,
            "baseline": result.baseline,
            "best": result.ranking if detail.target == "pareto" else result.ranking[:SHOWN],
            "branches": [
                BranchProgress(
                    branch=branch.branch,
                    phase=branch.end,
                    round=branch.rounds,
                    found=branch.tally.feasible,
                    target=branch.tally.feasible,
                    attempts=branch.tally.attempts,
                    in_flight=0,
                )
                for branch in result.branches
            ],
        }
    )


def running_detail(row: SweepRow, watch: SweepWatch, goal: OptimizationGoal) -> SweepDetail:
    """A sweep as it is being run."""
    return _bare_detail(row).model_copy(
        update={
            "elapsed_seconds": watch.elapsed_seconds,
            "branches": watch.progress,
            "tally": watch.tally,
            "baseline": watch.baseline_entry(goal),
            "best": watch.best(goal, most=SHOWN),
        }
    )


def _bare_detail(row: SweepRow) -> SweepDetail:
    summary = summary_of(row)
    config: dict[str, JsonValue] = {}
    try:
        config = _CONFIG.validate_json(row.config)
    except ValidationError:
        summary = summary.model_copy(update={"reason": f"its configuration {_UNREAD}"})
    return SweepDetail(**summary.model_dump(), config=config, results_dir=row.folder)


async def candidate_page(folder: Path, *, offset: int, limit: int) -> CandidatePage:
    """Some of the candidates in a sweep's folder; none where it is gone.

    Raises:
        SpicaError: the file cannot be read, or a line is no candidate; the message names it.
    """
    path = folder / "candidates.jsonl"
    try:
        async with asyncio.timeout(_PAGE_SECONDS):
            return await in_threads(_PAGES, partial(_read_page, path, offset, limit))
    except TimeoutError:
        raise SpicaError(f"{path}: the disk does not answer") from None


async def artifact_of(folder: Path, candidate_id: str) -> bytes:
    """The artifact of a candidate from a sweep's folder, as it lies there.

    Raises:
        ArtifactUnknownError: there is none.
        SpicaError: it cannot be read.
    """
    path = folder / artifact_path(candidate_id)
    # A name leads to no other folder.
    if _CANDIDATE_ID.fullmatch(candidate_id) is None:
        raise ArtifactUnknownError(f"no candidate is called {candidate_id!r}")
    try:
        async with asyncio.timeout(_PAGE_SECONDS):
            body = await in_threads(_PAGES, partial(_read_artifact, path))
    except FileNotFoundError:
        raise ArtifactUnknownError(f"candidate {candidate_id} has left no artifact") from None
    except TimeoutError:
        raise SpicaError(f"{path}: the disk does not answer") from None
    except OSError as error:
        raise SpicaError(f"{path}: {file_problem(error)}") from error
    if len(body) > MAX_ARTIFACT_BYTES:
        raise SpicaError(f"{path}: more than {MAX_ARTIFACT_BYTES} bytes, so no artifact")
    return body


def _read_artifact(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_ARTIFACT_BYTES + 1)


def _read_page(path: Path, offset: int, limit: int) -> CandidatePage:
    try:
        with path.open("rb") as file:
            starts = _line_starts(path, path.stat().st_size)
            total = len(starts)
            if offset >= total:
                return CandidatePage(total=total, offset=offset, candidates=[])
            file.seek(starts[offset])
            lines = [file.readline() for _ in range(min(limit, total - offset))]
    except FileNotFoundError:
        return CandidatePage(total=0, offset=offset, candidates=[])
    except OSError as error:
        raise SpicaError(f"{path}: {file_problem(error)}") from error
    candidates = [_candidate(line, path, number) for number, line in enumerate(lines, offset + 1)]
    return CandidatePage(total=total, offset=offset, candidates=candidates)


@lru_cache(maxsize=_INDEXED_FILES)
def _line_starts(path: Path, size: int) -> array[int]:  # noqa: ARG001  # a file that grows has others
    """Where each whole line of a file begins.

    Args:
        path: the file.
        size: its size in bytes.
    """
    starts = array("Q")
    at = 0
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                starts.append(at)
            at += len(line)
    return starts


def _candidate(line: bytes, path: Path, number: int) -> CandidateRecord:
    try:
        return CandidateRecord.model_validate_json(line)
    except ValidationError as error:
        raise SpicaError(f"{path}: line {number} is no candidate") from error

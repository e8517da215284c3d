"""Has sweeps run, killed and resumed, and finds out what has become of them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from support.killing.driver import Command

TESTS = Path(__file__).parents[2]
_LONGEST_ANSWER_BYTES = 64 * 2**20


@dataclass
class Answer:
    """How a run of a sweep ended.

    Attributes:
        killed: whether it has died at its step.
        steps: all that it took, unless it was killed.
    """

    killed: bool
    code: int
    steps: list[str] = field(default_factory=list)


class Driver:
    """Runs sweeps one after another."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator[Driver]:
        """Start the process that the sweeps are forks of, and end it with the context."""
        path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "support.killing.driver"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            limit=_LONGEST_ANSWER_BYTES,
            env=os.environ | {"PYTHONPATH": path},
            cwd=TESTS.parent,
        )
        try:
            yield cls(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()

    async def run(self, command: Command) -> Answer:
        """Run a sweep, or go on with it, until it ends or dies."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(asdict(command)).encode() + b"\n")
        answer = await stdout.readline()
        return Answer(**json.loads(answer))


@dataclass(frozen=True)
class Found:
    """What a sweep has come to, without names and times.

    Attributes:
        status: of the sweep.
        tally: suggestions by what became of them.
        ranking: samples, their scores and their gains, best first.
        records: by branch and number: sample, outcome, score, round, source.
        baseline: what they are held against, and over how many replays; none: nothing.
    """

    status: str
    tally: dict[str, Any]
    ranking: list[tuple[Any, float, Any]]
    records: dict[tuple[str, int], Any]
    baseline: tuple[Any, float, int] | None = None


def found_in(folder: Path) -> Found:
    """Read a sweep's folder."""
    summary = json.loads((folder / "summary.json").read_text())
    ranking = json.loads((folder / "ranking.json").read_text())
    lines = (folder / "candidates.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    kept = ("round", "outcome", "cause", "score", "config", "source", "projection")
    by_number = {
        (record["branch"], record["number"]): {name: record.get(name) for name in kept}
        for record in records
    }
    assert len(by_number) == len(records), "a candidate is there twice"
    tally = summary["tally"]
    # Of the last run alone.
    tally.pop("late_results")
    tally.pop("resent_requests")
    baseline = summary["baseline"]
    return Found(
        summary["status"],
        tally,
        [(one["config"], one["score"], one["gain"]) for one in ranking],
        by_number,
        baseline and (baseline["config"], baseline["score"], baseline["replicates"]),
    )

"""The folder of one sweep, written as things happen, so that whatever ends it leaves the rest."""

from __future__ import annotations

import base64
import binascii
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final, Self

import structlog

from schemas.config import SmartSearchConfig
from schemas.results import CandidateRecord, SweepResult
from schemas.workload import SYNTHETIC_FIELDS, TRACE_FIELDS
from spica_async.documents import to_yaml
from spica_async.errors import InputError, SpicaError, file_problem
from spica_async.judge.ranking import artifact_path
from spica_async.plan.describe import describe_plan
from spica_async.plan.types import SweepPlan

_CANDIDATES: Final = "candidates.jsonl"
_UNFINISHED: Final = ".{}.part"

log = structlog.get_logger(__name__)


def new_sweep_id() -> str:
    """A name that sorts by time and that no other sweep has, e.g. `20260102-030405-9f3a02c7`."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


def config_document(config: SmartSearchConfig) -> dict[str, Any]:
    """A configuration with its defaults, as it can be read again."""
    # The defaults of the other kind of workload, written out, would read as settings of it.
    other = TRACE_FIELDS if not config.workload.is_trace else SYNTHETIC_FIELDS
    return config.model_dump(mode="json", exclude_none=True, exclude={"workload": set(other)})


class ResultsFolder:
    """Writes one sweep's files.

    `config.yaml`: the configuration with every default filled in. `plan.json`: what is searched,
    and what is not and why. `candidates.jsonl`: one line per evaluated candidate, as it arrives.
    `ranking.json` or `front.json`: the result, best first or along the front. `summary.json`:
    tallies, versions, seed and timings. `artifacts/`: how each confirmed candidate has behaved, as
    gzipped JSON. `logs/`: what the processes had to say.
    """

    def __init__(self, path: Path, candidates: IO[str]) -> None:
        self.path = path
        self._candidates = candidates

    @classmethod
    @contextmanager
    def open(cls, root: Path, sweep_id: str, *, resumed: bool = False) -> Iterator[Self]:
        """Make the folder `root/sweep_id`, or open that of an earlier run.

        Args:
            root: the folder for the folders of sweeps.
            sweep_id: the folder's name.
            resumed: it may be there. All candidates are to be appended once more, and take the
                place of those that are there when `show_candidates` is called.

        Raises:
            InputError: it cannot be made or opened.
        """
        path = root / sweep_id
        try:
            (path / "logs").mkdir(parents=True, exist_ok=resumed)
            candidates = (path / _UNFINISHED.format(_CANDIDATES)).open("w", encoding="utf-8")
        except OSError as error:
            raise InputError(f"--output {root}: {file_problem(error)}") from None
        folder = cls(path, candidates)
        try:
            if not resumed:
                folder.show_candidates()
            yield folder
        finally:
            # What could not be written before is tried once more.
            with folder._explained():
                candidates.close()

    def write_config(self, config: SmartSearchConfig) -> None:
        """Write the configuration with its defaults; it can be run again as it is."""
        self._replace("config.yaml", to_yaml(config_document(config)))

    def write_plan(self, plan: SweepPlan) -> None:
        """Write what will be searched."""
        self._replace("plan.json", _pretty(describe_plan(plan)))

    def show_candidates(self) -> None:
        """Let `candidates.jsonl` be what has been appended, and from now on is."""
        unfinished = self.path / _UNFINISHED.format(_CANDIDATES)
        with self._explained():
            self._candidates.flush()
            if unfinished.exists():
                os.replace(unfinished, self.path / _CANDIDATES)  # noqa: PTH105  # the atomic one

    def append(self, record: CandidateRecord) -> None:
        """Add one line, which is on its way to the disk when this returns."""
        with self._explained():
            self._candidates.write(record.model_dump_json(exclude_none=True) + "\n")
            self._candidates.flush()

    def write_artifact(self, candidate_id: str, artifact: str) -> None:
        """Write what a candidate has left behind, as it came from the worker."""
        try:
            body = base64.b64decode(artifact, validate=True)
        except binascii.Error as error:
            log.warning("results.artifact_unreadable", candidate=candidate_id, error=str(error))
            return
        path = self.path / artifact_path(candidate_id)
        unfinished = path.with_name(_UNFINISHED.format(path.name))
        with self._explained():
            path.parent.mkdir(exist_ok=True)
            unfinished.write_bytes(body)
            os.replace(unfinished, path)  # noqa: PTH105  # the atomic one

    def write_result(self, result: SweepResult, *, pareto: bool) -> None:
        """Write the ranking or the front, and the summary."""
        # One by one: as a whole a long ranking would keep other threads waiting.
        ranking = [candidate.model_dump(mode="json") for candidate in result.ranking]
        document = result.model_dump(mode="json", exclude={"ranking"})
        self._replace("front.json" if pareto else "ranking.json", _pretty(ranking))
        self._replace("summary.json", _pretty(document))

    def _replace(self, name: str, text: str) -> None:
        # Never half a file, whenever it is that we are stopped.
        unfinished = self.path / _UNFINISHED.format(name)
        with self._explained():
            unfinished.write_text(text, encoding="utf-8")
            os.replace(unfinished, self.path / name)  # noqa: PTH105  # the atomic one

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SpicaError(
                f"the results cannot be written to {self.path}: {file_problem(error)}"
            ) from None


def _pretty(document: object) -> str:
    return json.dumps(document, indent=2) + "\n"

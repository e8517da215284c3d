"""What was measured, as JSON lines, so that a long benchmark can be taken up again.

A line tells which code it was measured with: what another code has measured is measured again.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from pydantic import TypeAdapter

ROOT = Path(__file__).parents[2]


class OfTask(Protocol):
    """Anything that knows which task it is the outcome of."""

    @property
    def task(self) -> Hashable:
        """What was to be measured."""


RecordT = TypeVar("RecordT", bound=OfTask)


@functools.cache
def digest_of(*folders: str) -> str:
    """Twelve hexadecimal digits that change with any line of Python in these folders.

    Args:
        folders: relative to the project's.
    """
    sources = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    text = b"".join(path.read_bytes() for path in sources)
    return hashlib.sha256(text).hexdigest()[:12]


@dataclass(frozen=True)
class _Line:
    code: str
    record: Any


_lines = TypeAdapter(_Line)


class Records(Generic[RecordT]):
    """A file of records, one for each task, which only grows.

    Args:
        path: where it is; made if it is missing.
        kind: the class of the records, a dataclass.
        code_of: the digest of the code that decides about the outcome of a task.
        fresh: whether to begin an empty file.
    """

    def __init__(
        self,
        path: Path,
        kind: type[RecordT],
        *,
        code_of: Callable[[Any], str],
        fresh: bool = False,
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if fresh:
            path.unlink(missing_ok=True)
        path.touch()
        self._path = path
        self._adapter = TypeAdapter(kind)
        self._by_task: dict[Hashable, RecordT] = {}
        self._code_of = code_of
        with path.open() as lines:
            for text in lines:
                line = _lines.validate_json(text)
                record = self._adapter.validate_python(line.record)
                if line.code == code_of(record.task):
                    self._by_task[record.task] = record

    def __contains__(self, task: Hashable) -> bool:
        return task in self._by_task

    def __getitem__(self, task: Hashable) -> RecordT:
        return self._by_task[task]

    def add(self, record: RecordT) -> None:
        """Keep a record, in the file before this returns."""
        self._by_task[record.task] = record
        with self._path.open("ab") as lines:
            written = self._adapter.dump_python(record, mode="json")
            line = _Line(self._code_of(record.task), written)
            lines.write(_lines.dump_json(line) + b"\n")

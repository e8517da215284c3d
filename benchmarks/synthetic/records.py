"""What was measured, as JSON lines, so that a long benchmark can be taken up again."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from pydantic import TypeAdapter


class OfTask(Protocol):
    """Anything that knows which task it is the outcome of."""

    @property
    def task(self) -> Hashable:
        """What was to be measured."""


RecordT = TypeVar("RecordT", bound=OfTask)


class Records(Generic[RecordT]):
    """A file of records, one for each task, which only grows.

    Args:
        path: where it is; made if it is missing.
        kind: the class of the records, a dataclass.
        fresh: whether to begin an empty file.
    """

    def __init__(self, path: Path, kind: type[RecordT], *, fresh: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if fresh:
            path.unlink(missing_ok=True)
        path.touch()
        self._path = path
        self._adapter = TypeAdapter(kind)
        self._by_task: dict[Hashable, RecordT] = {}
        with path.open() as lines:
            for line in lines:
                record = self._adapter.validate_json(line)
                self._by_task[record.task] = record

    def __contains__(self, task: Hashable) -> bool:
        return task in self._by_task

    def __getitem__(self, task: Hashable) -> RecordT:
        return self._by_task[task]

    def add(self, record: RecordT) -> None:
        """Keep a record, in the file before this returns."""
        self._by_task[record.task] = record
        with self._path.open("ab") as lines:
            lines.write(self._adapter.dump_json(record) + b"\n")

"""What the engine answered, kept in the user's cache: the same engine answers the same again."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog
from pydantic import TypeAdapter, ValidationError

from spica_async.engine.versions import engine_fingerprint
from spica_async.errors import file_problem
from spica_async.places import user_cache_folder

AnswerT = TypeVar("AnswerT")

log = structlog.get_logger(__name__)

# Counted up whenever the engine is asked in another way, or an answer is read otherwise.
_FORM: Final = 2
# Another planning process writes for a millisecond.
_PATIENCE_SECONDS: Final = 5.0
_UNUSED_AFTER_SECONDS: Final = 30 * 24 * 3600


class Answers:
    """Questions and answers as JSON; a database that fails only costs time.

    Args:
        path: Of the database, made where it is missing and anew where it is damaged; None to keep
            nothing.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._database: sqlite3.Connection | None = None
        self._is_writable = True

    @classmethod
    @contextmanager
    def open(cls) -> Iterator[Answers]:
        """Yields what this engine has answered to planning processes of this user."""
        answers = cls(answers_folder() / _file_name())
        answers._connect()
        try:
            yield answers
        finally:
            answers._close()

    def recall(
        self, question: tuple[Any, ...], kind: TypeAdapter[AnswerT], ask: Callable[[], AnswerT]
    ) -> AnswerT:
        """The answer that is kept, or else the engine's, which is kept from now on.

        Args:
            question: What JSON can say, all of what the answer depends on.
            kind: Of the answer.
            ask: Asks the engine; what it raises propagates, and nothing is kept.
        """
        known = self.known(question, kind)
        if known is not None:
            return known
        answer = ask()
        self.keep(question, kind, answer)
        return answer

    def known(self, question: tuple[Any, ...], kind: TypeAdapter[AnswerT]) -> AnswerT | None:
        """The answer that is kept, or None."""
        found = self._execute("SELECT answer FROM answers WHERE question = ?", _text(question))
        if not found:
            return None
        with suppress(ValidationError):  # Not of ours: asked again, and kept over it.
            return kind.validate_json(found[0][0])
        return None

    def keep(self, question: tuple[Any, ...], kind: TypeAdapter[AnswerT], answer: AnswerT) -> None:
        """Keep an answer."""
        if self._is_writable:
            text = kind.dump_json(answer).decode()
            self._execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", _text(question), text)

    def _execute(self, statement: str, *values: str) -> list[tuple[str, ...]]:
        if self._database is None:
            return []
        try:
            return self._database.execute(statement, values).fetchall()
        except sqlite3.OperationalError as error:  # Full, read-only, taken: what it has may do.
            self._warn("plan.answers_not_kept", error)
            self._is_writable = False
        except sqlite3.DatabaseError as error:
            self._warn("plan.answers_damaged", error)
            self._start_anew()
        return []

    def _connect(self) -> None:
        assert self._path is not None  # noqa: S101 - only what is kept is opened
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._database = _connection(self._path)
            except sqlite3.OperationalError:  # Out of reach, or taken: others may use it.
                raise
            except sqlite3.DatabaseError as error:
                self._warn("plan.answers_damaged", error)
                self._path.unlink()
                self._database = _connection(self._path)
        except (OSError, sqlite3.Error) as error:
            self._warn("plan.answers_not_kept", error)
        else:
            _discard_unused(self._path)

    def _start_anew(self) -> None:
        self._close()
        assert self._path is not None  # noqa: S101 - it was open
        with suppress(OSError):  # Then it fails again when it is opened, and that is reported.
            self._path.unlink()
        self._connect()

    def _close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()

    def _warn(self, event: str, error: Exception) -> None:
        log.warning(event, path=str(self._path), error=_problem(error))


def _problem(error: Exception) -> str:
    return file_problem(error) if isinstance(error, OSError) else str(error)


def answers_folder() -> Path:
    """Where answers are kept; may be removed whenever nothing is being planned."""
    return user_cache_folder() / "answers"


def _file_name() -> str:
    """A name that changes with the engine that answers and with the code that asks."""
    return f"{engine_fingerprint()}-{metadata.version('spica-async')}-{_FORM}.sqlite3"


def _text(question: tuple[Any, ...]) -> str:
    return json.dumps(question, sort_keys=True)


def _connection(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=_PATIENCE_SECONDS, isolation_level=None)
    try:
        # What a power cut spoils is asked again.
        database.execute("PRAGMA synchronous = OFF")
        database.execute(
            "CREATE TABLE IF NOT EXISTS answers"
            " (question TEXT PRIMARY KEY, answer TEXT NOT NULL) WITHOUT ROWID"
        )
    except sqlite3.Error:
        database.close()
        raise
    return database


def _discard_unused(current: Path) -> None:
    """Remove the answers of engines that nobody has asked for long."""
    with suppress(OSError):  # Of a cache that is read-only nobody discards anything either.
        os.utime(current)
    for path in current.parent.glob("*.sqlite3"):
        with suppress(OSError):  # Another process may be at it, too.
            if time.time() - path.stat().st_mtime > _UNUSED_AFTER_SECONDS:
                path.unlink()

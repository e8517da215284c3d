"""What the engine answered, kept in the user's cache: the same engine answers the same again."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import platformdirs
import structlog
from pydantic import TypeAdapter, ValidationError

from spica_async.engine.versions import engine_fingerprint

AnswerT = TypeVar("AnswerT")

log = structlog.get_logger(__name__)

# Counted up whenever the engine is asked in another way, or an answer is read otherwise.
_FORM: Final = 1
# Another planning process writes for a millisecond.
_PATIENCE_SECONDS: Final = 5.0
_UNUSED_AFTER_SECONDS: Final = 30 * 24 * 3600


class Answers:
    """Questions and answers as JSON; a database that fails is given up, which only costs time.

    Args:
        database: Where they are kept; None to keep nothing.
    """

    def __init__(self, database: sqlite3.Connection | None = None) -> None:
        self._database = database

    @classmethod
    @contextmanager
    def open(cls) -> Iterator[Answers]:
        """Yields what this engine has answered to planning processes of this user."""
        database = _open_or_start_anew(answers_folder() / f"{engine_fingerprint()}-{_FORM}.sqlite3")
        try:
            yield cls(database)
        finally:
            if database is not None:
                database.close()

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
        text = kind.dump_json(answer).decode()
        self._execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", _text(question), text)

    def _execute(self, statement: str, *values: str) -> list[tuple[str, ...]]:
        if self._database is None:
            return []
        try:
            return self._database.execute(statement, values).fetchall()
        except sqlite3.Error:
            log.warning("plan.answers_given_up", exc_info=True)
            self._database = None
            return []


def answers_folder() -> Path:
    """Where answers are kept; may be removed whenever nothing is being planned."""
    return platformdirs.user_cache_path("spica-async") / "answers"


def _text(question: tuple[Any, ...]) -> str:
    return json.dumps(question, sort_keys=True)


def _open_or_start_anew(path: Path) -> sqlite3.Connection | None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            database = _open(path)
        except sqlite3.OperationalError:  # Out of reach, or taken for too long: others may use it.
            raise
        except sqlite3.DatabaseError:
            path.unlink()
            database = _open(path)
        _discard_unused(path)
    except (OSError, sqlite3.Error):
        log.warning("plan.answers_not_kept", path=str(path), exc_info=True)
        return None
    return database


def _open(path: Path) -> sqlite3.Connection:
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
    os.utime(current)
    for path in current.parent.glob("*.sqlite3"):
        if time.time() - path.stat().st_mtime > _UNUSED_AFTER_SECONDS:
            path.unlink(missing_ok=True)

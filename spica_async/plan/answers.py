"""What the engine answered, kept in the user's cache: the same engine answers the same again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import structlog
from pydantic import TypeAdapter, ValidationError

from spica_async.engine.kept_folders import discard_unused, note_use
from spica_async.engine.own_files import own_files
from spica_async.engine.versions import engine_fingerprint
from spica_async.errors import file_problem
from spica_async.places import user_cache_folder

AnswerT = TypeVar("AnswerT")

log = structlog.get_logger(__name__)

# Counted up whenever the engine is asked in another way, or an answer is read otherwise.
_FORM: Final = 2


class Answers:
    """Answers as JSON, each in a file named by its question; a folder that fails only costs time.

    Args:
        folder: Of the answers; None to keep nothing.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._is_writable = True

    @classmethod
    def open(cls) -> Self:
        """What this engine has answered to planning processes of this user.

        Nothing where it reads performance data of the user's own: that may change while the engine
        is asked.
        """
        if own_files() is not None:
            return cls()
        # Another engine answers otherwise, and so may other code that asks.
        name = f"{engine_fingerprint()}-{metadata.version('spica-async')}-{_FORM}"
        folder = answers_folder() / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            note_use(folder)
            discard_unused(folder.parent)
        except OSError as error:
            _warn(folder, error)
            return cls()
        return cls(folder)

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
        if self._folder is None:
            return None
        try:
            return kind.validate_json((self._folder / _file_name(question)).read_bytes())
        except (OSError, ValidationError):  # Not there or damaged: asked again, and kept over it.
            return None

    def keep(self, question: tuple[Any, ...], kind: TypeAdapter[AnswerT], answer: AnswerT) -> None:
        """Keep an answer."""
        if self._folder is None or not self._is_writable:
            return
        file = self._folder / _file_name(question)
        draft = file.with_suffix(f".{os.getpid()}")
        try:
            draft.write_bytes(kind.dump_json(answer))
            draft.replace(file)
        except OSError as error:  # Full or read-only: what is kept already is still read.
            _warn(self._folder, error)
            self._is_writable = False


def answers_folder() -> Path:
    """Where answers are kept; may be removed whenever nothing is being planned."""
    return user_cache_folder() / "answers"


def _file_name(question: tuple[Any, ...]) -> str:
    text = json.dumps(question, sort_keys=True)
    return f"{hashlib.sha256(text.encode()).hexdigest()}.json"


def _warn(folder: Path, error: OSError) -> None:
    log.warning("plan.answers_not_kept", path=str(folder), error=file_problem(error))

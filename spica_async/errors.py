"""Errors that reach the user as one clear message."""

from __future__ import annotations

import errno
import os
import tempfile
import traceback
from typing import Final

# Their errors have one message, and need no traceback.
_OURS: Final = frozenset({"spica_async", "workers"})


class SpicaError(Exception):
    """Something went wrong that a person can understand and act on."""


class InputError(SpicaError):
    """What was given cannot be searched; the message names the field, line or file."""


def printable(text: str, limit: int) -> str:
    """A text of somebody else's as a message can have it.

    Control characters, line breaks and half characters are written as Python writes them, and what
    is longer than `limit` characters is cut.
    """
    cut = text if len(text) <= limit else f"{text[:limit]}..."
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in cut)


def file_problem(error: OSError | ValueError | RuntimeError) -> str:
    """What the system has against a path that somebody named, in a few words without the path.

    Besides errors of the system these are what Python raises of itself: ValueError for a NUL byte
    or half a character, RuntimeError for a loop of links or a home that nobody has.
    """
    if isinstance(error, UnicodeError):
        return "a name that is no text"
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return " ".join(text.lower().split())


def unforeseen(error: BaseException) -> str:
    """One line on an error that nobody has foreseen.

    What the system has against a file concerns the file's owner, wherever it turned up; anything
    else is a bug of ours, whose traceback is kept.
    """
    if isinstance(error, OSError) and error.filename is not None:
        name = error.filename
        shown = os.fsdecode(name) if isinstance(name, bytes) else name
        return f"{shown}: {file_problem(error)}"
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        # Of a stream that is open, such as what the output was redirected to.
        return f"the output cannot be written: {file_problem(error)}"
    return f"unexpected: {keep_traceback(''.join(traceback.format_exception(error)))}"


class NothingFeasibleError(SpicaError):
    """What was to be measured came to nothing that can be scored."""


class TimeUpError(SpicaError):
    """The time that a sweep may take was up before anything was found."""


def keep_traceback(text: str) -> str:
    """Write a traceback to a file of its own, for the user to pass on rather than to read.

    Returns:
        The error's last line, and where the rest is.
    """
    last = text.strip().splitlines()[-1]
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="spica-async-", suffix=".log", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
    except OSError as error:
        return f"{last} (no details could be kept: {file_problem(error)})"
    return f"{last} (details in {file.name})"


def causes(error: BaseException) -> list[BaseException]:
    """The errors of a group of groups, in the order in which they were noticed."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [cause for one in error.exceptions for cause in causes(one)]


def first_cause(error: BaseException) -> BaseException:
    """The first error of a group of groups, which a person can act on; the others are logged."""
    first, *others = causes(error)
    if not others:
        return first
    # Imported late: children import this module, and have nothing to log.
    import structlog  # noqa: PLC0415  # see above

    log = structlog.get_logger(__name__)
    known = {(type(first), str(first))}
    for other in others:
        if (type(other), str(other)) not in known:
            known.add((type(other), str(other)))
            log.warning("errors.another", error=_line(other), besides=_line(first, keep=False))
    return first


def _line(error: BaseException, *, keep: bool = True) -> str:
    """One line on an error; the traceback of one that is not ours is kept if asked for."""
    if type(error).__module__.partition(".")[0] in _OURS:
        return str(error)
    if keep:
        return keep_traceback("".join(traceback.format_exception(error)))
    return f"{type(error).__name__}: {error}"

"""Errors that reach the user as one clear message."""

from __future__ import annotations

import tempfile


class SpicaError(Exception):
    """Something went wrong that a person can understand and act on."""


class BusAwayError(SpicaError):
    """The broker was away for too long. Worth trying again once it is back."""


class InputError(SpicaError):
    """What was given cannot be searched; the message names the field, line or file."""


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
        return f"{last} (no details could be kept: {error.strerror})"
    return f"{last} (details in {file.name})"


def first_cause(error: BaseException) -> BaseException:
    """The first error of a group of groups, which is what a person can act on."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

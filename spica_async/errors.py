"""Errors that reach the user as one clear message."""

from __future__ import annotations

import tempfile


class SpicaError(Exception):
    """Something went wrong that a person can understand and act on."""


class InputError(SpicaError):
    """What was given cannot be searched; the message names the field, line or file."""


def keep_traceback(text: str) -> str:
    """Write a traceback to a file of its own, for the user to pass on rather than to read.

    Returns:
        The error's last line, and where the rest is.
    """
    with tempfile.NamedTemporaryFile(
        "w", prefix="spica-async-", suffix=".log", delete=False, encoding="utf-8"
    ) as file:
        file.write(text)
    return f"{text.strip().splitlines()[-1]} (details in {file.name})"

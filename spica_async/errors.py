"""Errors that reach the user as one clear message."""

from __future__ import annotations


class SpicaError(Exception):
    """Something went wrong that a person can understand and act on."""


class InputError(SpicaError):
    """What was given cannot be searched; the message names the field, line or file."""

"""Holds back Python's search for cycles of objects that nobody uses any more."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def not_collected() -> Iterator[None]:
    """Make many lasting objects without a search through all of them now and again.

    What is collected at once, by counting its users, still is.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

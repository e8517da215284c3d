"""What the engine says against a deployment, sorted by its words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

from spica_async.errors import printable

RejectionKind = Literal["no_kv_room", "indivisible", "no_performance_data", "unsupported"]

# What the core says of a shape that cannot be, and what it means. All else is an error of ours.
_REJECTIONS: Final[tuple[tuple[str, RejectionKind], ...]] = (
    ("no KV budget", "no_kv_room"),
    ("Invalid quantized MoE configuration", "indivisible"),
    ("divisible by", "indivisible"),
    ("required op-level data unavailable", "no_performance_data"),
    ("no backend version is available", "no_performance_data"),
    # Of models that it has for some shapes alone, such as those without attention DP.
    ("no timing data for", "no_performance_data"),
    ("num_gpu_blocks must be positive", "no_kv_room"),
    # Of a model folder that leaves out what the KV cache of a token is made of.
    ("insufficient model metadata", "unsupported"),
    ("ep size cannot be larger than", "indivisible"),
)


# How the engine words that a combination is beyond it, rather than wrong.
_UNSUPPORTED_PHRASES: Final = (
    "is supported only for backend=",
    "override requires backend=",
    "does not support",
    "unsupported",
    "not implemented",
)


class ShapeRejectedError(Exception):
    """The engine cannot run this parallel shape: a fact about the shape, not a fault.

    Attributes:
        kind: What the fact is about.
        reason: One line for a person.
    """

    def __init__(self, kind: RejectionKind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


@contextmanager
def rejections() -> Iterator[None]:
    """Translate what the engine says against a shape; all other errors pass."""
    try:
        yield
    except ValueError as error:
        for phrase, kind in _REJECTIONS:
            if phrase in str(error):
                raise ShapeRejectedError(kind, one_line(error)) from error
        if is_unsupported(error):
            raise ShapeRejectedError("unsupported", one_line(error)) from error
        raise


def is_unsupported(error: BaseException) -> bool:
    """Whether the engine says that it cannot do this at all, whatever the values."""
    text = str(error).lower()
    return any(phrase in text for phrase in _UNSUPPORTED_PHRASES)


def one_line(error: BaseException, limit: int = 300) -> str:
    """An error's message, printable and in one line, cut to about `limit` characters."""
    return printable(" ".join(str(error).split()) or type(error).__name__, limit)

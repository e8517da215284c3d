"""KV capacity of a replica, from the very configuration and core that the replay loads."""

from __future__ import annotations

from typing import Any, Final, Literal

from schemas.search_space import Role
from spica_async.engine import runtime
from spica_async.engine.config import SampleView, engine_config

RejectionKind = Literal["no_kv_room", "indivisible", "no_performance_data", "unsupported"]

# What the core says of a shape that cannot be, and what it means. All else is an error of ours.
_REJECTIONS: Final[tuple[tuple[str, RejectionKind], ...]] = (
    ("no KV budget", "no_kv_room"),
    ("Invalid quantized MoE configuration", "indivisible"),
    ("divisible by", "indivisible"),
    ("required op-level data unavailable", "no_performance_data"),
    ("no backend version is available", "no_performance_data"),
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


def normalized_engine(sample: SampleView, role: Role) -> dict[str, Any]:
    """The engine's complete arguments for one replica, `num_gpu_blocks` filled in.

    The first call per backend and SKU loads performance data (up to a few seconds), later ones
    take some tens of milliseconds.

    Raises:
        ShapeRejectedError: if the shape has no room for KV blocks, cannot be split that way, was
            never measured, or is set up as this backend cannot be.
        ValueError: if the engine refuses the arguments for any other reason.
    """
    mocker = runtime.load("dynamo.mocker.config")
    try:
        normalized: dict[str, Any] = mocker.normalize_mocker_config(engine_config(sample, role))
    except ValueError as error:
        for phrase, kind in _REJECTIONS:
            if phrase in str(error):
                raise ShapeRejectedError(kind, one_line(error)) from error
        if is_unsupported(error):
            raise ShapeRejectedError("unsupported", one_line(error)) from error
        raise
    return normalized


def kv_tokens_per_rank(sample: SampleView, role: Role) -> int:
    """Tokens whose keys and values one attention-DP rank of one replica holds.

    Raises:
        ShapeRejectedError: as `normalized_engine`.
        ValueError: as `normalized_engine`.
    """
    engine = normalized_engine(sample, role)["engine"]
    return int(engine["num_gpu_blocks"]) * int(engine["block_size"])


def is_unsupported(error: BaseException) -> bool:
    """Whether the engine says that it cannot do this at all, whatever the values."""
    text = str(error).lower()
    return any(phrase in text for phrase in _UNSUPPORTED_PHRASES)


def one_line(error: BaseException, limit: int = 300) -> str:
    """An error's message without line breaks, cut to `limit` characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else f"{text[: limit - 3]}..."

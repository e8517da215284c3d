"""KV capacity of a replica, from the very configuration and core that the replay loads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal

from schemas.search_space import Role
from spica_async.engine import runtime
from spica_async.engine.config import (
    MEMORY_FRACTION_KEYS,
    Arguments,
    SampleView,
    Tables,
    engine_config,
)
from spica_async.engine.tables import prepared_tables

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


def launch_config(sample: SampleView, role: Role, *, prepared: bool = True) -> Arguments:
    """The launch configuration of one replica, timed by the tables that are read fastest.

    Args:
        sample: A flat sample that deploys `role`.
        role: Which replica to describe.
        prepared: Whether to use prepared tables, see `tables`, rather than the engine's own.

    Raises:
        KeyError: if the sample lacks a field of the role.
    """
    tables = prepared_tables(sample["hardware_sku"], sample["backend"]) if prepared else None
    return engine_config(sample, role, tables)


def normalized_engine(sample: SampleView, role: Role, *, prepared: bool = True) -> dict[str, Any]:
    """The engine's complete arguments for one replica, `num_gpu_blocks` filled in.

    The first call per backend and SKU loads performance data (up to a few seconds), later ones
    take some tens of milliseconds.

    Args:
        sample: A flat sample that deploys `role`.
        role: Which replica to describe.
        prepared: As `launch_config`; the numbers are the same.

    Raises:
        ShapeRejectedError: if the shape has no room for KV blocks, cannot be split that way, was
            never measured, or is set up as this backend cannot be.
        ValueError: if the engine refuses the arguments for any other reason.
    """
    mocker = runtime.load("dynamo.mocker.config")
    config = launch_config(sample, role, prepared=prepared)
    with _rejections():
        normalized: dict[str, Any] = mocker.normalize_mocker_config(config)
    return normalized


def kv_tokens_per_rank(sample: SampleView, role: Role) -> int:
    """Tokens whose keys and values one attention-DP rank of one replica holds.

    Which shapes were measured and what else the engine refuses, it looks up once for all batch
    limits of a deployment: that takes most of a second for a large MoE.

    Raises:
        ShapeRejectedError: as `normalized_engine`.
        ValueError: as `normalized_engine`.
    """
    tables = prepared_tables(sample["hardware_sku"], sample["backend"])
    unlimited = engine_config({**sample, f"{role}_max_num_batched_tokens": None}, role, tables)
    deployment = json.dumps(unlimited, sort_keys=True)
    if tables is not None and deployment in _accepted:
        blocks = _blocks_of_accepted(engine_config(sample, role, tables), tables)
        return blocks * int(sample[f"{role}_block_size"])
    try:
        engine = normalized_engine(sample, role)["engine"]
    except ShapeRejectedError as error:
        if error.kind == "no_kv_room":  # The last of its checks: all others were passed.
            _accepted.add(deployment)
        raise
    _accepted.add(deployment)
    return int(engine["num_gpu_blocks"]) * int(engine["block_size"])


_accepted: set[str] = set()
"""Launch configurations without batch limits, as JSON, that the engine takes if there is room."""


def _blocks_of_accepted(config: Arguments, tables: Tables) -> int:
    """KV blocks per rank under a configuration that the engine takes, by its own formula."""
    engine = config["engine"]
    timing = engine["timing_model"]["config"]
    same_name = ("moe_backend", "moe_ep_size", "moe_tp_size")
    with _rejections():
        return int(
            runtime.load("aisimulate.capacity").estimate_num_gpu_blocks(
                backend_name=timing["backend"],
                system=timing["system"],
                model_path=timing["model"],
                tp_size=timing["tp"],
                pp_size=timing["pp"],
                attention_dp_size=timing["attention_dp"],
                block_size=engine["block_size"],
                max_num_batched_tokens=engine["max_num_batched_tokens"],
                max_num_sequences=engine["max_num_seqs"],
                backend_version=tables.version,
                systems_path=str(tables.systems),
                **{name: timing[name] for name in same_name if name in timing},
                **{name: config[name] for name in MEMORY_FRACTION_KEYS.values() if name in config},
            )
        )


@contextmanager
def _rejections() -> Iterator[None]:
    """Tell facts about a shape, in whatever words of the engine, from all other errors."""
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
    """An error's message without line breaks, cut to `limit` characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else f"{text[: limit - 3]}..."

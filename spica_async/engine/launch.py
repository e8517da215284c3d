"""The launch configuration of one replica, and what the engine makes of it."""

from __future__ import annotations

from typing import Any

from schemas.search_space import Role
from spica_async.engine import runtime
from spica_async.engine.config import Arguments, SampleView, engine_config
from spica_async.engine.refusals import rejections
from spica_async.engine.tables import prepared_tables


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
    with rejections():
        normalized: dict[str, Any] = mocker.normalize_mocker_config(config)
    return normalized

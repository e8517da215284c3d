"""Reads and checks everything that a command is given, before any work starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from schemas.config import SmartSearchConfig
from schemas.messages import TraceLoad
from spica_async.config import load_config
from spica_async.errors import InputError
from spica_async.loads import trace_load
from spica_async.planner import filter_scaling_policies
from spica_async.traces.check import TraceError, check_trace, sorted_copy


@dataclass(frozen=True, slots=True)
class Inputs:
    """A configuration that is sound in itself, and its trace if it has one."""

    config: SmartSearchConfig
    trace: TraceLoad | None


def read_inputs(path: Path, note: Callable[[str], None]) -> Inputs:
    """Read a configuration and the trace that it names.

    Args:
        path: the YAML file.
        note: told what the user should know.

    Raises:
        InputError: if either has something wrong with it.
    """
    config = load_config(path)
    # Asked again by the plan, in a process of its own; here so that a mistake shows at once.
    filter_scaling_policies(config)
    if config.workload.trace_path is None:
        return Inputs(config, None)
    try:
        facts = check_trace(config.workload.trace_path)
        if not facts.is_sorted:
            note(f"warning: {facts.path} is not in order of its timestamps; a sorted copy is used")
            copy = sorted_copy(facts.path, user_cache_path("spica-async") / "traces")
            facts = check_trace(copy)
    except TraceError as error:
        raise InputError(f"workload.trace_path: {error}") from None
    return Inputs(config, trace_load(config.workload, facts))

"""Runs the command line as a user does: in a process, with files in a folder."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from spica_async.cli.app import app
from spica_async.cli.program import run_app

TIMEOUT_SECONDS = 240


@dataclass(frozen=True)
class Finished:
    code: int
    stdout: str
    stderr: str


Spica = Callable[..., Finished]
"""Runs `spica-async` with these arguments."""
WriteConfig = Callable[[dict[str, Any]], str]
"""Writes a configuration and returns its path for the command line."""


def run_in(folder: Path, *arguments: str) -> Finished:
    done = subprocess.run(
        [sys.executable, "-m", "spica_async", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def run_here(folder: Path, *arguments: str) -> Finished:
    """As `run_in`, in this process, which saves the second that a new one begins with."""
    with (
        chdir(folder),
        redirect_stdout(io.StringIO()) as stdout,
        redirect_stderr(io.StringIO()) as stderr,
        pytest.raises(SystemExit) as ended,
    ):
        run_app(app, arguments)
    assert isinstance(ended.value.code, int)
    return Finished(ended.value.code, stdout.getvalue(), stderr.getvalue())


def small_sweep(**changes: Any) -> dict[str, Any]:
    """A sound configuration with a single sample; `block__key` replaces, None removes."""
    document: dict[str, Any] = {
        "search_space": {
            "model_name": "Qwen/Qwen3-32B",
            "hardware_sku": "h200_sxm",
            "deployment_mode": ["agg"],
            "gpu_budget": 2,
            "context_length": 4096,
            "parallel_configs": [{"tp": 2}],
            "agg_max_num_batched_tokens": [8192],
            "agg_max_num_seqs": [256],
            "router_mode": ["round_robin"],
            "planner_scaling_policy": ["disabled"],
        },
        "workload": {"isl": 256, "osl": 32, "concurrency": 4, "num_request_ratio": 2},
        "goal": {"target": "throughput"},
        "sweep": {"max_rounds": 1, "parallel_evals": 2},
    }
    for name, value in changes.items():
        block, _, key = name.partition("__")
        if value is None:
            document[block].pop(key, None)
        else:
            document[block][key] = value
    return document

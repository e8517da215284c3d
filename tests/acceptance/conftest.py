from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml
from support.commands import Spica, WriteConfig, run_here, run_in, small_sweep


@pytest.fixture
def spica(tmp_path: Path) -> Iterator[Spica]:
    yield partial(run_here, tmp_path)
    structlog.reset_defaults()


@pytest.fixture
def spica_process(tmp_path: Path) -> Spica:
    """For what a process of its own shows, and for tests that have an event loop already."""
    return partial(run_in, tmp_path)


@pytest.fixture
def write_config(tmp_path: Path) -> WriteConfig:
    def write(document: dict[str, Any]) -> str:
        (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(document))
        return "sweep.yaml"

    return write


@pytest.fixture
def nine_samples(write_config: WriteConfig) -> str:
    """Nine samples that are listed, one at a time; each takes about a second."""
    return write_config(
        small_sweep(
            search_space__agg_max_num_batched_tokens=[8192, 16384, 32768],
            search_space__agg_max_num_seqs=[256, 512, 1024],
            workload__num_request_ratio=400,
            sweep__max_rounds=9,
            sweep__parallel_evals=1,
        )
    )

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commands import Spica, WriteConfig, run_in


@pytest.fixture
def spica(tmp_path: Path) -> Spica:
    return partial(run_in, tmp_path)


@pytest.fixture
def write_config(tmp_path: Path) -> WriteConfig:
    def write(document: dict[str, Any]) -> str:
        (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(document))
        return "sweep.yaml"

    return write

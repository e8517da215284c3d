from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spica_async.engine import runtime

MODULES = (
    "capability",
    "capacity",
    "config",
    "evaluation",
    "facts",
    "footprint",
    "planner",
    "runtime",
    "versions",
)


def test_no_module_imports_the_engine_s_libraries_by_itself() -> None:
    code = f"""
import importlib, sys
for name in {MODULES!r}:
    importlib.import_module("spica_async.engine." + name)
heavy = {{"dynamo", "aisimulate", "aisimulate_core", "aiconfigurator", "numpy", "pandas"}}
sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_child_that_has_nothing_to_log_does_not_pay_for_it() -> None:
    imports = "import sys, workers.child, spica_async.engine.evaluation"
    command = [sys.executable, "-c", f"{imports}; print('structlog' in sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_module_that_seizes_the_root_logger_gets_it_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "seizer.py").write_text(
        "import logging\n"
        "root = logging.getLogger()\n"
        "root.handlers = [logging.NullHandler()]\n"
        "root.setLevel(logging.CRITICAL)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    root = logging.getLogger()
    before = root.handlers[:], root.level
    assert runtime.load("seizer").root is root
    assert (root.handlers, root.level) == before


def test_a_log_level_from_outside_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_LOG", "debug")
    monkeypatch.delenv("RUST_LOG", raising=False)
    runtime.prepare()
    assert os.environ["DYN_LOG"] == "debug"
    assert os.environ["RUST_LOG"] == "error"

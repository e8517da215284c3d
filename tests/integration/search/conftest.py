"""Sweeps whose plans and replays take no time, and where they are kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.daemons import make_quick

from spica_async.journal.opening import JournalOptions


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    make_quick(monkeypatch)


@pytest.fixture
def options(tmp_path: Path) -> JournalOptions:
    return JournalOptions(tmp_path / "journal.sqlite3")

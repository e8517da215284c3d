"""A Vizier that nobody has tried is refused, before any work is done."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest

from spica_async.errors import InputError
from spica_async.optimizer.vizier_version import TRIED, check_vizier_version

LOCK = Path(__file__).parents[3] / "requirements.lock"


def test_the_locked_version_was_tried() -> None:
    locked = re.search(r"^google-vizier(?:\[.*\])?==(\S+)", LOCK.read_text(), re.MULTILINE)
    assert locked is not None
    assert locked[1] in TRIED
    check_vizier_version()


def test_another_is_refused_with_both_versions() -> None:
    installed = metadata.version("google-vizier")
    with pytest.raises(InputError, match=rf"google-vizier 9\.9 is needed, and {installed} is"):
        check_vizier_version(("9.9",))


def test_a_missing_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(InputError, match="none is installed"):
        check_vizier_version()

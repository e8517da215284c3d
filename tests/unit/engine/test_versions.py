from __future__ import annotations

import re

import pytest

from spica_async.engine import versions


def test_the_engine_s_parts_are_installed_in_known_versions() -> None:
    found = versions.engine_versions()
    assert found["ai-dynamo"] == found["ai-dynamo-runtime"] == "1.6.0"
    assert "aisimulate" in found


def test_the_fingerprint_changes_with_any_part(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = versions.engine_versions()
    seen = {versions.engine_fingerprint()}
    for name in installed:
        changed = {**installed, name: "0"}
        monkeypatch.setattr(versions, "engine_versions", lambda changed=changed: changed)
        seen.add(versions.engine_fingerprint.__wrapped__())
    assert len(seen) == len(installed) + 1
    assert all(re.fullmatch("[0-9a-f]{12}", fingerprint) for fingerprint in seen)

"""A configuration and its trace, as a command reads them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from schemas.config import SmartSearchConfig
from spica_async.config import inputs
from spica_async.config.inputs import inputs_of
from spica_async.errors import InputError, SpicaError
from spica_async.traces.check import check_trace

ROW = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setattr(inputs, "user_cache_folder", lambda: folder)
    return folder


def config(trace: Path, **workload: Any) -> SmartSearchConfig:
    return SmartSearchConfig.model_validate(
        {
            "search_space": {"model_name": "Qwen/Qwen3-32B", "hardware_sku": "h200_sxm"},
            "workload": {"trace_path": str(trace), **workload},
        }
    )


def written(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(ROW | row) + "\n" for row in rows))
    return path


def test_a_normal_trace_is_replayed_where_it_lies(tmp_path: Path, cache: Path) -> None:
    path = written(tmp_path, {}, {"timestamp": 7})
    notes: list[str] = []

    found = inputs_of(config(path), notes.append)

    assert found.trace is not None
    assert (found.trace.path, found.trace.requests) == (str(path), 2)
    assert not notes
    assert not cache.exists()


def test_what_a_trace_has_is_counted(tmp_path: Path, cache: Path) -> None:
    path = written(
        tmp_path,
        {"timestamp": 9, "session_id": "a", "priority": 3},
        {"timestamp": 3},
        {"timestamp": 11, "session_id": "a"},
    )
    notes: list[str] = []

    found = inputs_of(config(path), notes.append)

    assert found.trace is not None
    copy = Path(found.trace.path)
    assert copy.parent == cache / "traces"
    assert found.trace.sha256 == check_trace(copy).sha256
    unsorted, unread, sessions, copied = notes
    assert "not in order of its timestamps" in unsorted
    assert unread.endswith("fields that have no effect in a replay: priority")
    assert "sessions of several turns: 1, each a closed loop; 1 of 3 requests wait" in sessions
    assert copied == f"what is replayed is the copy {copy}"


def test_a_full_disk_is_reported(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(ROW).encode()))

    def full(*_: Any) -> Path:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(
        SpicaError, match=r"no copy of the trace can be .*: no space left on device"
    ):
        inputs_of(config(path), print)
    assert not list((cache / "traces").iterdir())


def test_a_trace_that_is_slowed_down_without_end(tmp_path: Path) -> None:
    path = written(tmp_path, {}, {"timestamp": 1000})
    with pytest.raises(InputError, match=r"workload\.arrival_speedup_ratio: .* 11,574 days"):
        inputs_of(config(path, arrival_speedup_ratio=1e-9), print)

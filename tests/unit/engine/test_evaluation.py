from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.engine_samples import synthetic

from spica_async.engine import evaluation, runtime


def _replay_with_planner(monkeypatch: pytest.MonkeyPatch, status: str) -> dict[str, float]:
    planner = SimpleNamespace(metadata={"bootstrap": {"status": status}}, total_ticks=7)
    result = SimpleNamespace(summary={"gpu_hours": 1.5}, planner=planner)

    def run_synthetic_trace_replay(*_: Any, **__: Any) -> SimpleNamespace:
        return result

    api = SimpleNamespace(run_synthetic_trace_replay=run_synthetic_trace_replay)
    monkeypatch.setattr(runtime, "load", lambda _: api)
    return evaluation.replay(synthetic(), {"planner_config": {}})


@pytest.mark.parametrize("status", ["installed", "not_required"])
def test_a_planner_s_ticks_are_reported(monkeypatch: pytest.MonkeyPatch, status: str) -> None:
    report = _replay_with_planner(monkeypatch, status)
    assert report == {"gpu_hours": 1.5, "planner_total_ticks": 7.0}


@pytest.mark.parametrize("status", ["empty", "session_failed_load_only"])
def test_a_planner_without_performance_data_fails_the_replay(
    monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    with pytest.raises(RuntimeError, match=status):
        _replay_with_planner(monkeypatch, status)

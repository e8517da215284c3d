"""What is read before an evaluation's time begins: all that its candidate shares with others."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from support.engine_samples import KV_ROUTER, SLA, agg, disagg, request, scaled, synthetic

from schemas.messages import EvaluationRequest, Sample
from spica_async.engine.evaluation import SetUp
from workers.port import ChildDeaths
from workers.settings import ChildSettings
from workers.slot import Slot

LOAD = synthetic(requests=20)

_CHILD = """
import json, sys
from schemas.messages import EvaluationRequest
from spica_async.engine.evaluation import evaluate, warm_up
request = EvaluationRequest.model_validate_json(sys.argv[1])
warm_up()(request)
before = set(sys.modules)
measured = evaluate(request)
assert measured.outcome == "feasible", measured.detail
print(json.dumps(sorted(set(sys.modules) - before)))
"""


@pytest.mark.parametrize(
    "sample",
    [
        disagg(**KV_ROUTER),
        pytest.param(agg(**scaled("hybrid_180_5")), marks=pytest.mark.slow),
    ],
    ids=["kv_router", "planner"],
)
def test_the_evaluation_itself_imports_nothing_more(sample: Sample) -> None:
    message = request(sample, LOAD, SLA).model_dump_json()
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, message], capture_output=True, text=True, check=True
    )
    imported = json.loads(done.stdout.splitlines()[-1])
    assert [name for name in imported if name.partition(".")[0] in _ENGINE] == []


_ENGINE = {"aiconfigurator_core", "aisimulate", "aisimulate_core", "dynamo", "pandas", "numpy"}


def test_each_kind_of_candidate_is_set_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sample] = []

    def note(sample: Sample, sla: object) -> dict[str, object]:
        asked.append(sample)
        if sample["tp"] == 3:
            raise ValueError("no such shape")
        return {"planner_config": None}

    monkeypatch.setattr("spica_async.engine.evaluation.replay_arguments", note)
    set_up = SetUp()
    with pytest.raises(ValueError, match="no such shape"):
        set_up(request(agg(tp=3), LOAD))
    others = [agg(tp=4), agg(tp=8), agg(backend="sglang"), agg(backend="sglang", tp=2), agg(tp=3)]
    for sample in others:
        set_up(request(sample, LOAD))
    assert asked == [agg(tp=3), agg(tp=4), agg(backend="sglang")]


async def test_no_candidate_of_a_fresh_child_pays_for_it() -> None:
    asked = request(agg(), LOAD)
    cold = await build_seconds(ChildSettings(warm_up=None), asked)
    # It takes a hundredth by then.
    assert await build_seconds(ChildSettings(), asked) < cold / 4


async def build_seconds(settings: ChildSettings, asked: EvaluationRequest) -> float:
    """What the first evaluation of a child took before its replay."""
    slot = Slot(0, settings, memory_limit_bytes=2**40)
    try:
        measurement = await slot.evaluate(asked, ChildDeaths())
    finally:
        await slot.close()
    assert measurement.outcome == "feasible"
    return measurement.build_seconds

"""What we rely on in the engine's measurements, and that its replays can be held against them."""

from __future__ import annotations

import pytest

from spica_async.accuracy.points import ENGINE_MODELS, CellKey, read_points
from spica_async.accuracy.replays import Comparison, comparison, replay_request
from spica_async.engine import facts
from spica_async.engine.evaluation import evaluate
from spica_async.engine.model_files import packaged_models
from spica_async.engine.silicon import deployed_version, silicon_table, timed_version


def test_every_model_of_the_table_has_its_configuration_and_its_kind() -> None:
    models = {model.name: model.is_moe for model in ENGINE_MODELS.values()}
    assert models.keys() <= packaged_models()
    for name, is_moe in models.items():
        assert facts.model_facts(name).is_moe == is_moe, name


def test_the_table_has_points_of_many_cells() -> None:
    read = read_points(silicon_table())
    by_cell = read.by_cell()
    assert len(read.points) > 2000
    assert len(by_cell) > 40
    # Nothing is left out but for reasons that were looked into.
    assert read.left_out.keys() == {
        "disaggregated",
        "of unknown concurrency",
        "of a model in a precision that the engine has no configuration of",
        "measured again",
    }
    for _, sku, backend in by_cell:
        assert timed_version(sku, backend) == facts.backend_version(sku, backend)


def test_the_versions_that_are_deployed_are_others_than_those_timed() -> None:
    # Once they are the same, the documentation's words on them are wrong.
    assert {one: deployed_version(one) for one in ("vllm", "sglang", "trtllm")} == {
        "vllm": "0.31.0",
        "sglang": "0.5.21",
        "trtllm": "1.3.0rc29",
    }
    assert timed_version("h200_sxm", "vllm") == "0.24.0"
    assert deployed_version("tgi") == ""


def test_points_can_be_replayed_and_are_not_far_off() -> None:
    points = read_points(silicon_table()).by_cell()[CellKey("Qwen/Qwen3-32B", "h100_sxm", "vllm")]
    small = [one for one in points if one.replayable.osl == 128 and one.replayable.concurrency == 8]
    for point in small[:3]:
        told = comparison(point, evaluate(replay_request(point)))
        assert isinstance(told, Comparison), told
        assert told.tpot_ms == pytest.approx(point.tpot_ms, rel=0.5)
        # Requests of one length arrive in step, and wait for each other.
        assert point.ttft_ms / 4 < told.ttft_ms < 4 * point.ttft_ms

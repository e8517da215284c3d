from __future__ import annotations

import pytest
from support.engine_samples import OFFLOAD, agg, disagg, scaled

from schemas.messages import Sample
from spica_async.engine.capability import probe_replay


@pytest.mark.parametrize("backend", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("sample", [agg(), disagg()], ids=["agg", "disagg"])
def test_every_backend_replays_in_every_mode(sample: Sample, backend: str) -> None:
    assert probe_replay({**sample, "backend": backend}) is None


def test_a_probe_runs_neither_router_nor_planner() -> None:
    assert probe_replay(agg(router_mode="no such", **scaled("load_180_5"))) is None


@pytest.mark.parametrize(
    ("sample", "phrase"),
    [
        (agg(backend="trtllm", **OFFLOAD), "supported only for backend=vllm"),
        (disagg(decode_block_size=32), "matching prefill/decode block_size"),
        (agg(hardware_sku="l4"), "no timing data"),
    ],
)
def test_a_probe_tells_why_it_cannot(sample: Sample, phrase: str) -> None:
    assert phrase in str(probe_replay(sample))


def test_a_sample_that_is_not_whole_is_an_error_and_no_answer() -> None:
    sample = agg()
    del sample["tp"]
    with pytest.raises(KeyError):
        probe_replay(sample)

from __future__ import annotations

from pathlib import Path

import pytest
from support.engine_samples import SLA, agg, disagg, request, synthetic

from schemas.messages import Sample
from spica_async.engine import facts, runtime
from spica_async.engine.evaluation import evaluate, replay_arguments
from spica_async.engine.table_layout import Origin, write_tables
from spica_async.engine.tables import prepared_tables


# Slow tests have every backend and kind of model.
@pytest.mark.parametrize("sample", [agg(), disagg(backend="trtllm")], ids=["agg", "disagg"])
def test_prepared_tables_give_the_same_report_to_the_last_bit(sample: Sample) -> None:
    asked = request(sample, synthetic(), SLA)
    plain, ours = evaluate(asked, prepared=False), evaluate(asked)
    assert plain.outcome == "feasible"
    assert ours.report == plain.report


@pytest.mark.parametrize(
    "sample", [agg(tp=3), agg(tp=1, model_name="Qwen/Qwen3-235B-A22B"), agg(hardware_sku="l4")]
)
def test_a_shape_that_cannot_be_is_refused_alike(sample: Sample) -> None:
    asked = request(sample, synthetic())
    plain, ours = evaluate(asked, prepared=False), evaluate(asked)
    assert plain.outcome != "feasible"
    assert (ours.outcome, ours.cause) == (plain.outcome, plain.cause)


def test_a_replay_is_pointed_to_them_unless_told_not_to() -> None:
    tables = prepared_tables("h200_sxm", "vllm")
    assert tables is not None

    def systems(*, prepared: bool) -> list[str]:
        arguments = replay_arguments(agg(), sla=None, prepared=prepared)
        config = arguments["extra_engine_args"]["engine"]["timing_model"]["config"]
        paths: list[str] = config["systems_paths"]
        return paths

    assert systems(prepared=True) == [str(tables.systems)]
    assert systems(prepared=False) == [str(facts.systems_folder("h200_sxm"))]


def test_they_hold_one_system_and_what_one_backend_may_borrow(tmp_path: Path) -> None:
    version = facts.backend_version("h200_sxm", "vllm")
    write_tables(Origin(facts.systems_folder("h200_sxm"), "h200_sxm", "vllm", version), tmp_path)
    assert [folder.name for folder in (tmp_path / "data").iterdir()] == ["h200_sxm"]
    gemm = {
        f"{folder.parent.name} {folder.name}"
        for folder in (tmp_path / "data" / "h200_sxm" / "gemm").glob("*/*")
    }
    assert gemm == {"vllm 0.24.0", "vllm 0.25.0"}
    rows = runtime.load("pyarrow.parquet").read_table(
        next((tmp_path / "data").rglob("gemm/vllm/0.25.0/*.parquet"))
    )
    assert rows.column_names == ["kernel_source", "gemm_dtype", "m", "n", "k", "latency"]


def test_versions_are_those_that_the_engine_would_take() -> None:
    slots = runtime.load("aisimulate_core.sdk.perf_database").get_version_slots
    for sku in facts.known_skus():
        for backend in ("vllm", "sglang", "trtllm", "another"):
            theirs = slots(sku, backend)
            if theirs is None:
                with pytest.raises(facts.NoPerfDatabaseError):
                    facts.backend_version(sku, backend)
            else:
                assert facts.backend_version(sku, backend) == theirs["current"]

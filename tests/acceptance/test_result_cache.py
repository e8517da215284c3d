"""What was measured before is not measured again, also under another goal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.commands import Spica, WriteConfig, small_sweep


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPICA_NO_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def records_of(tmp_path: Path, result: dict[str, Any]) -> list[dict[str, Any]]:
    lines = (tmp_path / result["results_dir"] / "candidates.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_later_sweep_gets_what_an_earlier_one_has_measured(
    spica: Spica, write_config: WriteConfig, tmp_path: Path
) -> None:
    document = small_sweep(search_space__agg_max_num_seqs=[256, 512], sweep__max_rounds=3)

    def run(*options: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        finished = spica("run", write_config(document), "--json", *options)
        assert finished.code == 0, finished.stderr
        result = json.loads(finished.stdout)
        return result, records_of(tmp_path, result)

    first, measured = run()
    assert first["tally"]["reused"] == 0
    assert {record.get("reused") for record in measured} == {None}

    document["goal"] = {"target": "e2e_latency"}
    document["search_space"]["agg_max_num_seqs"] = [256, 512, 1024]
    second, answered = run()
    assert second["tally"]["feasible"] == 3
    assert second["tally"]["reused"] == 2
    metrics = {record["config"]["agg_max_num_seqs"]: record["metrics"] for record in measured}
    for record in answered:
        size = record["config"]["agg_max_num_seqs"]
        assert record.get("reused") == (1 if size in metrics else None)
        if size in metrics:
            assert record["metrics"] == metrics[size]
            assert record["timings"]["replay"] == 0

    third, _ = run("--no-cache")
    assert third["tally"]["reused"] == 0
    assert [c["score"] for c in third["ranking"]] == [c["score"] for c in second["ranking"]]
    stats = spica("cache", "stats", "--json")
    assert json.loads(stats.stdout)["entries"] == 3


@pytest.mark.slow
def test_noisy_replays_say_how_often_they_were_measured(
    spica: Spica, write_config: WriteConfig, tmp_path: Path
) -> None:
    document = small_sweep(search_space__router_mode=["kv_router"])
    document["confirm"] = {"enabled": "off"}
    config = write_config(document)
    for _ in range(2):
        assert spica("run", config, "--no-cache").code == 0
    finished = spica("run", config, "--json")
    assert finished.code == 0, finished.stderr
    records = records_of(tmp_path, json.loads(finished.stdout))
    # The first proposals are the same each time; later ones depend on what was measured.
    assert 2 in {record.get("reused") for record in records}


@pytest.mark.slow
def test_a_sweep_says_that_it_measured_little(spica: Spica, write_config: WriteConfig) -> None:
    config = write_config(small_sweep())
    assert "were measured before" not in spica("run", config).stdout
    assert (
        "1 of these were measured before (--no-cache does it again)" in spica("run", config).stdout
    )

"""One deployment without a search, and two side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import Spica, WriteConfig, small_sweep


@pytest.fixture
def folder(spica: Spica, write_config: WriteConfig, tmp_path: Path) -> str:
    """The results of a sweep of two deployments."""
    document = small_sweep(search_space__agg_max_num_seqs=[256, 512])
    config = write_config(document | {"baseline": {"tp": 1}})
    finished = spica("run", config, "--set", "sweep.max_rounds=2", "--json")
    assert finished.code == 0, finished.stderr
    return str(json.loads(finished.stdout)["results_dir"])


def test_a_prediction_is_what_the_sweep_has_measured(
    spica: Spica, folder: str, tmp_path: Path
) -> None:
    ranking = json.loads((tmp_path / folder / "ranking.json").read_text())
    assert len(ranking) == 2
    entry = ranking[0]
    predicted = spica("predict", folder, "--json")
    again = json.loads(predicted.stdout)
    assert again.keys() == entry.keys()
    assert (again["metrics"], again["config"]) == (entry["metrics"], entry["config"])
    seqs = f"search_space.agg_max_num_seqs=[{entry['config']['agg_max_num_seqs']}]"
    of_file = spica("predict", "sweep.yaml", "--set", seqs, "--replicates", "2", "--json")
    assert json.loads(of_file.stdout)["metrics"] == entry["metrics"]
    assert json.loads(of_file.stdout)["replicates"] == 2

    pinned = spica("predict", folder, "--set", "search_space.gpu_budget=8")
    assert (pinned.code, "that of the candidate" in pinned.stderr) == (2, True)

    compared = spica("compare", f"{folder}:baseline", folder, "--json")
    summary = json.loads((tmp_path / folder / "summary.json").read_text())
    assert json.loads(compared.stdout)["a"] == summary["baseline"]["candidate_id"]
    assert json.loads(compared.stdout)["knobs"]["tp"] == [1, 2]

    compared = spica("compare", folder, f"{folder}:agg-1", "--json")
    document = json.loads(compared.stdout)
    assert document["notes"] == []
    assert set(document["knobs"]) <= {"agg_max_num_seqs"}
    assert "metric differs" in spica("compare", folder, folder).stdout
    unknown = spica("compare", folder, f"{folder}:agg-7")
    assert (unknown.code, "no candidate agg-7" in unknown.stderr) == (2, True)


def test_a_prediction_that_serves_nobody_ends_as_such_a_sweep_does(
    spica: Spica, write_config: WriteConfig
) -> None:
    goal = {"target": "goodput", "sla": {"ttft_ms": 0.001, "itl_ms": 0.001}}
    config = write_config(small_sweep() | {"goal": goal})
    late = spica("predict", config, "--json")
    assert (late.code, json.loads(late.stdout)["score"]) == (3, 0.0)
    failed = spica("predict", config, "--set", "sweep.max_eval_seconds=0.001")
    assert (failed.code, failed.stdout) == (3, "")
    assert "error: failed: time_limit" in failed.stderr

"""With rounds and a deterministic replay the seed decides the search; the slots do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commands import run_in, small_sweep

pytestmark = pytest.mark.slow


def searched(folder: Path, slots: int) -> tuple[Any, list[Any]]:
    """The ranking and the evaluated candidates by number, without names and times."""
    folder.mkdir()
    document = small_sweep(
        search_space__deployment_mode=["agg", "disagg"],
        search_space__parallel_configs=None,
        search_space__gpu_budget=8,
        search_space__agg_max_num_batched_tokens=[8192, 16384, 32768],
        search_space__agg_max_num_seqs=[256, 512, 1024],
        workload__concurrency=32,
        goal__target="throughput_per_gpu",
        sweep__schedule="rounds",
        sweep__max_rounds=3,
        sweep__candidates_per_round=5,
        sweep__parallel_evals=5,
    )
    (folder / "sweep.yaml").write_text(yaml.safe_dump(document))
    finished = run_in(folder, "run", "sweep.yaml", "--slots", str(slots), "--json")
    assert finished.code == 0, finished.stderr
    result = json.loads(finished.stdout)
    assert result["tally"]["stand_ins"] == 0
    lines = (folder / result["results_dir"] / "candidates.jsonl").read_text().splitlines()
    records = sorted(
        map(json.loads, lines), key=lambda record: (record["branch"], record["number"])
    )
    kept = ("branch", "round", "number", "config", "objectives", "projection")
    return (
        [(c["config"], c["objectives"]) for c in result["ranking"]],
        [{name: record[name] for name in kept} for record in records],
    )


def test_one_slot_and_four_search_alike(tmp_path: Path) -> None:
    one, four = searched(tmp_path / "one", 1), searched(tmp_path / "four", 4)

    assert one == four
    assert len(one[0]) == 30

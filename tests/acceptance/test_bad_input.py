"""Bad input gets one clear error and exit code 2, and nothing is started."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.commands import Finished, Spica, WriteConfig, run_here, small_sweep

from schemas.config import SmartSearchConfig
from spica_async.errors import InputError
from spica_async.plan.answers import Answers
from spica_async.plan.build import plan_sweep
from spica_async.plan.installed import InstalledEngine

GOODPUT = {"target": "goodput", "sla": {"ttft_ms": 2000.0, "itl_ms": 50.0}}

# What can be seen in the file itself; each message must name the field.
IN_THE_FILE: list[tuple[str, dict[str, Any], list[str]]] = [
    ("unknown key", {"search_space__gpu_budgt": 3}, ["search_space.gpu_budgt", "gpu_budget?"]),
    ("unknown key deep down", {"goal__sla": {"ttft": 1.0}}, ["goal.sla.ttft", "ttft_ms?"]),
    (
        "empty list",
        {"search_space__agg_max_num_seqs": []},
        ["agg_max_num_seqs", "512"],
    ),
    ("no choice", {"search_space__agg_max_num_seqs": [300]}, ["agg_max_num_seqs", "300", "512"]),
    ("NaN", {"workload__num_request_ratio": float("nan")}, ["workload.num_request_ratio"]),
    ("negative", {"search_space__gpu_budget": -1}, ["search_space.gpu_budget", "greater than 0"]),
    ("goodput without SLA", {"goal__target": "goodput"}, ["goal.sla", "e2e_ms"]),
    (
        "KV range under a scalar goal",
        {"workload__concurrency": None, "workload__kv_load_ratio": [0.1, 1.0]},
        ["workload.kv_load_ratio", "pareto"],
    ),
    (
        "throughput policies without an SLA",
        {"search_space__planner_scaling_policy": ["throughput_180_5"]},
        ["search_space.planner_scaling_policy", "SLA"],
    ),
    (
        "scaling policies with an e2e SLA alone",
        {
            "goal__target": "goodput",
            "goal__sla": {"e2e_ms": 9000.0},
            "search_space__planner_scaling_policy": ["load_180_5"],
        },
        ["search_space.planner_scaling_policy", "ttft_ms"],
    ),
]

# What only the engine can tell.
FROM_THE_ENGINE: list[tuple[str, dict[str, Any], list[str]]] = [
    ("model", {"search_space__model_name": "nobody/no-model"}, ["model_name", "nobody/no-model"]),
    (
        "requests that need another context",
        {"search_space__context_length": None, "workload__isl": 100_000},
        ["workload.isl", "100032", "40960", "context_length may be up to 131072", "YaRN"],
    ),
    ("request too long", {"workload__isl": 4090}, ["workload.isl", "4122", "4096"]),
]

# What only the engine can tell, and the planner of a sweep asks it.
FROM_PLANNING: list[tuple[str, dict[str, Any], list[str]]] = [
    ("SKU", {"search_space__hardware_sku": "h900"}, ["hardware_sku", "h900", "h200_sxm"]),
    (
        "budget",
        {
            "search_space__model_name": "deepseek-ai/DeepSeek-V3",
            "search_space__parallel_configs": None,
        },
        ["gpu_budget", "agg vllm agg tp 1: ", "tp 2"],
    ),
    (
        "pinned config",
        {
            "search_space__parallel_configs": [{"tp": 2, "moe_ep": 2}],
            "search_space__backend": ["vllm", "sglang"],
        },
        ["parallel_configs[0]", "agg vllm", "agg sglang", "dense"],
    ),
    (
        "context that no server starts with",
        {
            "search_space__model_name": "meta-llama/Meta-Llama-3.1-8B",
            "search_space__context_length": 200_000,
        },
        ["search_space.context_length", "131072", "no server starts with it"],
    ),
    (
        "planner field",
        {
            "search_space__planner_fpm_sampling": [
                {"max_num_fpm_samples": 64, "fpm_sample_bucket_size": 15}
            ]
        },
        ["planner_fpm_sampling[0]", "perfect square"],
    ),
]


def assert_one_error(tmp_path: Path, finished: Finished, words: list[str]) -> None:
    assert finished.code == 2
    assert finished.stdout == ""
    assert "Traceback" not in finished.stderr
    assert finished.stderr.count("error:") == 1
    for word in words:
        assert word in finished.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [case[1:] for case in (*IN_THE_FILE, *FROM_THE_ENGINE)],
    ids=[case[0] for case in (*IN_THE_FILE, *FROM_THE_ENGINE)],
)
def test_a_configuration(
    spica: Spica,
    write_config: WriteConfig,
    tmp_path: Path,
    changes: dict[str, Any],
    words: list[str],
) -> None:
    finished = spica("run", write_config(small_sweep(**changes)))

    assert_one_error(tmp_path, finished, words)


# A command plans in a process of its own, which is started above often enough.
@pytest.mark.parametrize(
    ("changes", "words"),
    [case[1:] for case in FROM_PLANNING],
    ids=[case[0] for case in FROM_PLANNING],
)
def test_a_plan(changes: dict[str, Any], words: list[str]) -> None:
    config = SmartSearchConfig.model_validate(small_sweep(**changes))

    with pytest.raises(InputError) as refused:
        plan_sweep(config, InstalledEngine(Answers()), None, lambda _: None)

    for word in words:
        assert word in str(refused.value)


def test_a_missing_file(spica: Spica, tmp_path: Path) -> None:
    assert_one_error(tmp_path, spica("run", "nowhere.yaml"), ["nowhere.yaml", "no such file"])


def test_a_trace_line(spica: Spica, write_config: WriteConfig, tmp_path: Path) -> None:
    good = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
    bad = good | {"output_length": 0}
    (tmp_path / "trace.jsonl").write_text(f"{json.dumps(good)}\n{json.dumps(bad)}\n")
    document = small_sweep() | {"workload": {"trace_path": "trace.jsonl"}}

    finished = spica("run", write_config(document))

    assert_one_error(tmp_path, finished, ["workload.trace_path", "line 2", "output_length"])


def test_an_unusable_output_folder(spica: Spica, write_config: WriteConfig, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    finished = spica("run", write_config(small_sweep()), "--output", "file")

    assert_one_error(tmp_path, finished, ["--output", "file"])


@pytest.mark.parametrize(
    "command", [["run", "sweep.yaml"], ["resume", "a-sweep"], ["serve", "--port", "0"]]
)
@pytest.mark.parametrize("where", ["here", "--output"])
def test_a_results_folder_whose_path_is_no_text(
    write_config: WriteConfig, tmp_path: Path, command: list[str], where: str
) -> None:
    write_config(small_sweep())
    odd = tmp_path / os.fsdecode(b"odd\xff")
    odd.mkdir()
    if where == "here":
        (tmp_path / "sweep.yaml").rename(odd / "sweep.yaml")
        finished = run_here(odd, *command)
    else:
        finished = run_here(tmp_path, *command, "--output", odd.name)
    assert_one_error(tmp_path, finished, ["--output", "odd\\xff", "UTF-8"])
    assert not (odd / "results").exists()


def test_more_slots_than_the_memory_holds(
    spica: Spica, write_config: WriteConfig, tmp_path: Path
) -> None:
    finished = spica("run", write_config(small_sweep()), "--slots", "100000")

    assert_one_error(tmp_path, finished, ["--slots", "memory"])


def test_a_model_folder_that_the_engine_cannot_read(
    spica: Spica, write_config: WriteConfig, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"architectures": null}')

    finished = spica("run", write_config(small_sweep(search_space__model_name="model")))

    assert_one_error(tmp_path, finished, ["search_space.model_name", "config.json: architectures"])

"""A sweep from the command line, on the real engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.commands import TIMEOUT_SECONDS, Spica, WriteConfig, small_sweep
from support.silicon import cell

from spica_async.accuracy.kept import keep
from spica_async.engine.versions import engine_fingerprint

PARETO = {"target": "pareto", "pareto_objectives": ["throughput_per_gpu", "throughput_per_user"]}


def only_folder(tmp_path: Path) -> Path:
    (folder,) = (path for path in (tmp_path / "results").iterdir() if path.is_dir())
    return folder


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_small_space_is_evaluated_once_each(
    spica: Spica, write_config: WriteConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    known = cell(sku="h100_sxm", points=1000)
    keep([known], engine_fingerprint())
    document = small_sweep(
        search_space__agg_max_num_batched_tokens=[8192, 16384],
        search_space__parallel_configs=[{"tp": 1}, {"tp": 2}],
        sweep__max_rounds=200,
    )

    finished = spica("run", write_config(document), "--slots", "2", "--json")

    assert finished.code == 0, finished.stderr
    result = json.loads(finished.stdout)
    assert result["status"] == "exhausted"
    assert result["tally"]["feasible"] == result["tally"]["attempts"] == 4
    scores = [candidate["score"] for candidate in result["ranking"]]
    assert scores == sorted(scores, reverse=True)
    assert all(candidate["used_gpus"] <= 2 for candidate in result["ranking"])
    folder = only_folder(tmp_path)
    assert result["results_dir"] == str(Path("results") / folder.name)
    records = lines(folder / "candidates.jsonl")
    assert {(r["config"]["tp"], r["config"]["agg_max_num_batched_tokens"]) for r in records} == {
        (1, 8192),
        (1, 16384),
        (2, 8192),
        (2, 16384),
    }
    assert json.loads((folder / "ranking.json").read_text()) == result["ranking"]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["versions"]["ai-dynamo"]
    assert summary["accuracy"] == result["accuracy"]
    [accuracy] = result["accuracy"]
    assert accuracy["cell"] == known.model_dump(mode="json")
    assert accuracy["differs"] == "measured on h100_sxm, not h200_sxm"
    assert (folder / "plan.json").exists()


def test_candidates_are_held_against_the_default(
    spica: Spica, write_config: WriteConfig, tmp_path: Path
) -> None:
    document = small_sweep(search_space__parallel_configs=[{"tp": 2}]) | {"baseline": "default"}

    finished = spica("run", write_config(document), "--slots", "1", "--json")

    assert finished.code == 0, finished.stderr
    result = json.loads(finished.stdout)
    assert result["tally"]["attempts"] == len(result["ranking"]) == 1
    baseline, (found,) = result["baseline"], result["ranking"]
    assert (baseline["config"]["tp"], baseline["config"]["replicas"]) == (1, 2)
    percent = 100 * (found["score"] / baseline["score"] - 1)
    assert found["gain"] == pytest.approx({"percent": percent, "margin": 0})
    assert "baseline: vllm agg 2 x tp 1" in finished.stderr
    folder = only_folder(tmp_path)
    assert json.loads((folder / "summary.json").read_text())["baseline"] == baseline


def test_no_request_meets_the_sla(spica: Spica, write_config: WriteConfig, tmp_path: Path) -> None:
    goal = {"target": "goodput", "sla": {"ttft_ms": 0.001, "itl_ms": 0.001}}

    finished = spica("run", write_config(small_sweep() | {"goal": goal}))

    assert finished.code == 3, finished.stderr
    assert "no request of any candidate met the SLA" in finished.stdout
    assert "nearest misses" in finished.stdout
    (record,) = lines(only_folder(tmp_path) / "candidates.jsonl")
    assert record["outcome"] == "feasible"
    assert record["score"] == 0.0


def test_nothing_feasible_names_its_causes(
    spica: Spica, write_config: WriteConfig, tmp_path: Path
) -> None:
    document = small_sweep(sweep__max_eval_seconds=0.001)

    finished = spica("run", write_config(document), "--json")

    assert finished.code == 3, finished.stderr
    result = json.loads(finished.stdout)
    assert result["status"] == "nothing_feasible"
    assert result["ranking"] == []
    assert result["tally"]["causes"] == {"time_limit": 1}


def test_a_reader_may_leave_and_a_terminal_may_lack_characters(
    write_config: WriteConfig, tmp_path: Path
) -> None:
    command = ["run", write_config(small_sweep()), "--json", "--output", "r\u00e9sultats"]
    with subprocess.Popen(
        [sys.executable, "-m", "spica_async", *command],
        cwd=tmp_path,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stderr is not None
        assert running.stderr.readline()
        running.stderr.close()
        assert running.stdout is not None
        stdout = running.stdout.read()

    assert running.returncode == 0
    assert stdout.isascii()
    result = json.loads(stdout)
    assert result["status"] == "exhausted"
    assert result["results_dir"].startswith("r\u00e9sultats/")
    folder = tmp_path / result["results_dir"]
    assert len(lines(folder / "candidates.jsonl")) == 1
    assert json.loads((folder / "ranking.json").read_text()) == result["ranking"]
    assert json.loads((folder / "summary.json").read_text())["status"] == "exhausted"


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, id="SIGINT"),
        # Both have one listener: that each has it shows in tests of `Interrupts`, too.
        pytest.param(signal.SIGTERM, id="SIGTERM", marks=pytest.mark.slow),
    ],
)
def test_an_interruption_keeps_what_was_found(
    write_config: WriteConfig, tmp_path: Path, number: signal.Signals
) -> None:
    document = small_sweep(
        search_space__agg_max_num_batched_tokens=[8192, 16384, 32768],
        search_space__agg_max_num_seqs=[256, 512, 1024],
        workload__num_request_ratio=400,
        sweep__max_rounds=9,
        sweep__parallel_evals=1,
    )
    with subprocess.Popen(
        [sys.executable, "-m", "spica_async", "run", write_config(document), "--json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if "agg round" in line:
                break
        children = psutil.Process(running.pid).children(recursive=True)
        assert children
        # To the whole group, as a terminal does it.
        os.killpg(running.pid, number)
        stdout, _ = running.communicate(timeout=TIMEOUT_SECONDS)

    assert running.returncode == 130
    result = json.loads(stdout)
    assert result["status"] == "interrupted"
    assert 1 <= len(result["ranking"]) < 9
    folder = only_folder(tmp_path)
    assert len(lines(folder / "candidates.jsonl")) == len(result["ranking"])
    assert (folder / "ranking.json").exists()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive


@pytest.fixture
def with_terminal() -> Iterator[None]:
    """Have children heed the end of their terminal, also where the tests run under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("with_terminal")
def test_the_end_of_the_terminal_ends_the_planning(
    write_config: WriteConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With nothing known yet the planning takes seconds, and is not over before the signal.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with subprocess.Popen(
        [sys.executable, "-m", "spica_async", "run", write_config(small_sweep())],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stderr is not None
        assert "facts about" in running.stderr.readline()
        children = psutil.Process(running.pid).children(recursive=True)
        assert children
        running.send_signal(signal.SIGHUP)
        stdout, stderr = running.communicate(timeout=TIMEOUT_SECONDS)

    assert running.returncode == 130
    assert stdout == ""
    assert stderr.splitlines()[-1].startswith("interrupted; ")
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive


def test_the_version() -> None:
    script = Path(sys.executable).with_name("spica-async")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("spica-async ")


def test_a_synthesised_trace_can_be_searched(
    spica: Spica, write_config: WriteConfig, tmp_path: Path
) -> None:
    made = spica("trace", "synth", "trace.jsonl", "--seed", "3", "--requests", "20")
    assert made.code == 0, made.stderr
    assert len(lines(tmp_path / "trace.jsonl")) == 20
    document = small_sweep(search_space__context_length=131072)
    document |= {"workload": {"trace_path": "trace.jsonl"}}

    finished = spica("run", write_config(document), "--json")

    assert finished.code == 0, finished.stderr
    assert json.loads(finished.stdout)["ranking"][0]["metrics"]["num_requests"] == 20

    again = spica("check", str(only_folder(tmp_path) / "config.yaml"))

    assert again.code == 0, again.stderr
    assert "no effect" not in again.stdout
    assert "distinct samples: 1" in again.stdout


def test_a_range_of_kv_loads_gives_a_front(spica: Spica, write_config: WriteConfig) -> None:
    document = small_sweep(
        search_space__context_length=None,
        search_space__gpu_budget=8,
        search_space__parallel_configs=[{"tp": 4}, {"tp": 8}],
        workload__concurrency=None,
        workload__kv_load_ratio=[0.0, 0.02],
        sweep__parallel_evals=4,
    )
    document["goal"] = PARETO

    finished = spica("run", write_config(document), "--json")

    assert finished.code == 0, finished.stderr
    front = json.loads(finished.stdout)["ranking"]
    speeds = [candidate["objectives"]["throughput_per_user"] for candidate in front]
    assert speeds == sorted(speeds)
    for candidate in front:
        facts = candidate["facts"]
        ratio, capacity = facts["kv_load_ratio"], facts["kv_load_concurrency_capacity"]
        assert facts["concurrency"] == max(1, int(ratio * capacity))
        assert capacity == facts["agg_kv_capacity_tokens"] // (256 + 16)

"""A model that does not ship with the engine, by its folder, on the real engine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.broker import VirtualHost
from support.commands import Finished, Spica, WriteConfig, small_sweep

from spica_async.engine.model_files import core_folder

SHIPPED = core_folder() / "model_configs" / "Qwen--Qwen3-32B_config.json"


def write_model(folder: Path, **changes: Any) -> Path:
    """The model that ships with the engine, or one like it."""
    folder.mkdir(parents=True, exist_ok=True)
    document = json.loads(SHIPPED.read_text()) | changes
    (folder / "config.json").write_text(json.dumps(document))
    return folder


def throughput(finished: Finished) -> float:
    assert finished.code == 0, finished.stderr
    [best] = json.loads(finished.stdout)["ranking"]
    found: float = best["metrics"]["output_throughput_tok_s"]
    return found


@contextmanager
def worker(url: str, folder: Path, *arguments: str) -> Iterator[None]:
    """A worker of another host: in a folder and with a cache of its own."""
    environment = os.environ | {"SPICA_BUS": url, "XDG_CACHE_HOME": str(folder / "cache")}
    with subprocess.Popen(
        [sys.executable, "-m", "workers", "--slots", "1", *arguments],
        cwd=folder,
        env=environment,
        stderr=subprocess.DEVNULL,
    ) as running:
        try:
            yield
        finally:
            running.send_signal(signal.SIGTERM)
            try:
                running.wait(timeout=60)
            finally:
                running.kill()


def test_no_folder_stands_in_for_a_model_that_ships_with_the_engine(
    spica: Spica, write_config: WriteConfig, tmp_path: Path
) -> None:
    write_model(tmp_path / "Qwen" / "Qwen3-32B", architectures=["NoSuchForCausalLM"])
    finished = spica("check", write_config(small_sweep()))
    assert finished.code == 0, finished.stderr
    assert "agg: 1 parallel configurations" in finished.stdout


@pytest.mark.slow
def test_it_is_known_by_what_it_holds(
    spica: Spica, write_config: WriteConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPICA_NO_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_model(tmp_path / "mine")
    config = write_config(small_sweep(search_space__model_name="mine"))
    first = spica("run", config, "--json", "--slots", "1")
    expected = throughput(first)

    # Elsewhere, but the same.
    shutil.copytree(tmp_path / "mine", tmp_path / "copy")
    copied = small_sweep(search_space__model_name="copy")
    again = spica("run", write_config(copied), "--json", "--slots", "1")
    assert throughput(again) == expected
    assert json.loads(again.stdout)["tally"]["reused"] == 1

    # At the same place, but another one.
    write_model(tmp_path / "mine", num_hidden_layers=16)
    config = write_config(small_sweep(search_space__model_name="mine"))
    changed = spica("run", config, "--json", "--slots", "1")
    assert throughput(changed) > 1.5 * expected
    assert json.loads(changed.stdout)["tally"]["reused"] == 0

    resumed = spica("resume", json.loads(first.stdout)["sweep_id"])
    assert resumed.code == 1
    (error,) = resumed.stderr.splitlines()[-1:]
    assert "search_space.model_name: the model's folder has changed" in error


@pytest.mark.slow
def test_workers_replay_the_coordinator_s_model_whatever_they_have(
    spica: Spica, write_config: WriteConfig, tmp_path: Path, broker_vhost: VirtualHost
) -> None:
    write_model(tmp_path / "mine")
    document = small_sweep(
        search_space__model_name="mine",
        search_space__agg_max_num_batched_tokens=[8192, 16384],
        search_space__agg_max_num_seqs=[256, 512],
        sweep__max_rounds=9,
    )
    hosts = {name: tmp_path / name for name in ("other", "none")}
    write_model(hosts["other"] / "mine", num_hidden_layers=16)
    hosts["none"].mkdir()
    with ExitStack() as working:
        for name, folder in hosts.items():
            working.enter_context(worker(broker_vhost.url, folder, "--name", name))
        config = write_config(document)
        over = spica("run", config, "--json", "--no-cache", "--bus", broker_vhost.url)
    alone = spica("run", config, "--json", "--no-cache", "--slots", "1")
    assert over.code == alone.code == 0, over.stderr + alone.stderr
    found, expected = (json.loads(one.stdout) for one in (over, alone))
    assert found["tally"]["feasible"] == found["tally"]["attempts"] == 4
    assert metrics_of(found) == metrics_of(expected)
    results = Path(found["results_dir"])
    lines = (tmp_path / results / "candidates.jsonl").read_text().splitlines()
    assert {json.loads(line)["worker"] for line in lines} == set(hosts)


def metrics_of(result: dict[str, Any]) -> list[dict[str, float]]:
    return [candidate["metrics"] for candidate in result["ranking"]]

"""A sweep that was cut off, and goes on by `spica-async resume`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commands import TIMEOUT_SECONDS, Spica, WriteConfig, small_sweep

SAMPLES = 9


@contextmanager
def running(tmp_path: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A run that has found a candidate."""
    with subprocess.Popen(
        [sys.executable, "-m", "spica_async", *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stderr is not None
            assert any("agg round" in line for line in process.stderr)
            # The folder is written by another thread than the screen.
            while not any(f.stat().st_size for f in tmp_path.glob("results/*/candidates.jsonl")):
                assert process.poll() is None
                time.sleep(0.01)
            yield process
        finally:
            process.kill()


def sweep_in(tmp_path: Path) -> str:
    (folder,) = (path for path in (tmp_path / "results").iterdir() if path.is_dir())
    return folder.name


def records_of(tmp_path: Path, sweep: str) -> list[dict[str, Any]]:
    lines = (tmp_path / "results" / sweep / "candidates.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_killed_sweep_goes_on_where_it_was(
    spica: Spica, nine_samples: str, tmp_path: Path
) -> None:
    with running(tmp_path, "run", nine_samples, "--slots", "1") as process:
        process.kill()
        process.communicate(timeout=TIMEOUT_SECONDS)
    sweep = sweep_in(tmp_path)
    before = records_of(tmp_path, sweep)
    assert 1 <= len(before) < SAMPLES

    finished = spica("resume", sweep, "--json")

    assert finished.code == 0, finished.stderr
    result = json.loads(finished.stdout)
    assert result["sweep_id"] == sweep
    assert result["status"] == "exhausted"
    assert result["tally"]["feasible"] == result["tally"]["attempts"] == SAMPLES
    after = records_of(tmp_path, sweep)
    assert after[: len(before)] == before
    assert len({record["candidate_id"] for record in after}) == len(after) == SAMPLES
    assert result["timings"]["total"] > before[-1]["found_seconds"]

    again = spica("resume", sweep, "--json")

    assert again.code == 0, again.stderr
    assert json.loads(again.stdout) == result
    assert records_of(tmp_path, sweep) == after

    unknown = spica("resume", "nothing")

    assert unknown.code == 2
    (error,) = unknown.stderr.splitlines()
    assert error == "error: there is no sweep nothing; see --output and --journal"


@pytest.mark.slow
def test_an_interrupted_sweep_says_how_to_go_on(
    spica: Spica, nine_samples: str, tmp_path: Path
) -> None:
    with running(tmp_path, "run", nine_samples, "--slots", "1") as process:
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 130
    sweep = sweep_in(tmp_path)
    assert stderr.splitlines()[-1] == f"go on with it: spica-async resume {sweep}"

    finished = spica("resume", sweep, "--json")

    assert finished.code == 0, finished.stderr
    assert json.loads(finished.stdout)["tally"]["feasible"] == SAMPLES


@pytest.mark.slow
def test_a_sweep_that_runs_cannot_be_had(
    spica: Spica, write_config: WriteConfig, tmp_path: Path
) -> None:
    config = write_config(
        small_sweep(
            search_space__agg_max_num_batched_tokens=[8192, 16384, 32768],
            search_space__agg_max_num_seqs=[256, 512, 1024],
            workload__num_request_ratio=5000,
            sweep__max_rounds=9,
            sweep__parallel_evals=1,
        )
    )
    with running(tmp_path, "run", config, "--slots", "1") as process:
        finished = spica("resume", sweep_in(tmp_path))
        assert process.poll() is None
    assert finished.code == 1
    (error,) = finished.stderr.splitlines()
    assert error.startswith(f"error: sweep {sweep_in(tmp_path)} is run by ")
    assert f":{process.pid}#" in error


@pytest.mark.slow
def test_what_was_searched_must_be_the_same(spica: Spica, tmp_path: Path) -> None:
    made = spica("trace", "synth", "trace.jsonl", "--requests", "4000", "--duration", "4000")
    assert made.code == 0
    document = small_sweep(
        search_space__context_length=131072,
        search_space__agg_max_num_seqs=[256, 512, 1024],
        sweep__max_rounds=9,
        sweep__parallel_evals=1,
    )
    document |= {"workload": {"trace_path": "trace.jsonl"}}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(document))
    with running(tmp_path, "run", "sweep.yaml", "--slots", "1") as process:
        process.kill()
    sweep = sweep_in(tmp_path)
    assert spica("trace", "synth", "trace.jsonl", "--requests", "10").code == 0

    finished = spica("resume", sweep)

    assert finished.code == 1
    assert "the trace has changed since the sweep was begun" in finished.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resume", "nothing"], "there is no journal"),
        (["resume", "nothing", "--journal", "mysql://host/name"], "journal: give sqlite:///PATH"),
        (["run", "sweep.yaml", "--journal", "sqlite:///"], "wants the path of a file"),
    ],
)
def test_bad_input_is_one_message(
    spica: Spica, nine_samples: str, arguments: list[str], message: str
) -> None:
    assert nine_samples == "sweep.yaml"
    finished = spica(*arguments)
    assert finished.code == 2
    (error,) = finished.stderr.splitlines()
    assert message in error


def test_a_server_that_does_not_answer_shows_at_once(
    spica: Spica, write_config: WriteConfig, tmp_path: Path
) -> None:
    url = "postgresql://someone:secret@127.0.0.1:1/name"
    finished = spica("run", write_config(small_sweep()), "--journal", url)
    assert finished.code == 1
    error = finished.stderr.splitlines()[-1]
    assert "postgresql://someone@127.0.0.1:1/name" in error
    assert "secret" not in finished.stderr
    assert not (tmp_path / "results").exists()

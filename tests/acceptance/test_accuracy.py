"""`spica-async accuracy`, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import Spica
from support.silicon import cell

from spica_async.accuracy.kept import keep
from spica_async.engine.versions import engine_fingerprint

KEPT = cell(sku="h100_sxm", points=90)


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "Qwen/Qwen9"], "--model: 'Qwen/Qwen9' was never measured; measured were "),
        (["--hardware", "l40s"], "--hardware: 'l40s' was never measured; measured were b200_sxm, "),
        (
            ["--backend", "tgi"],
            "--backend: 'tgi' was never measured; measured were sglang, trtllm, vllm",
        ),
        (
            ["--hardware", "gb200", "--backend", "vllm"],
            "--backend: vllm was never measured on gb200",
        ),
    ],
)
def test_what_was_never_measured_is_refused(
    spica: Spica, arguments: list[str], message: str
) -> None:
    finished = spica("accuracy", *arguments)
    assert finished.code == 2
    assert finished.stderr.startswith(f"error: {message}")


def test_what_is_known_is_shown_without_a_replay(spica: Spica) -> None:
    keep([KEPT], engine_fingerprint())
    exact = ["--model", KEPT.model, "--hardware", KEPT.hardware_sku, "--backend", KEPT.backend]
    finished = spica("accuracy", "--known", "--json", *exact)
    assert finished.code == 0, finished.stderr
    assert json.loads(finished.stdout) == [KEPT.model_dump(mode="json")]

    finished = spica("accuracy", "--known", *exact[:2], "--hardware", "b200_sxm", *exact[4:])
    assert "12" in finished.stdout
    assert finished.stderr == "the nearest: measured on h100_sxm, not b200_sxm\n"


@pytest.mark.slow
def test_a_cell_is_replayed_and_kept(spica: Spica) -> None:
    arguments = ["accuracy", "--json", "--model", KEPT.model, "--hardware", KEPT.hardware_sku]
    finished = spica(*arguments, "--backend", "vllm", "--points", "12")
    assert finished.code == 0, finished.stderr
    [found] = json.loads(finished.stdout)
    assert (found["points"], found["failed"]) == (12, 0)
    assert found["tpot"]["median"] < 0.3
    assert found["tpot_rank_correlation"] > 0.9

    again = spica(*arguments, "--backend", "vllm", "--points", "12")
    assert json.loads(again.stdout) == [found]

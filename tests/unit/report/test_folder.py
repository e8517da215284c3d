"""A results folder that cannot be written, or not any more."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.results import RESULT

from schemas.results import CandidateRecord
from spica_async.errors import InputError, SpicaError
from spica_async.report.folder import ResultsFolder

RECORD = CandidateRecord(
    candidate_id="sweep-agg-0",
    branch="agg",
    round=1,
    number=0,
    outcome="failed",
    cause="replay_error",
    detail="it broke",
    used_gpus=1,
    config={},
    source="optimizer",
    found_seconds=1.0,
)


def test_a_full_disk_names_the_folder(tmp_path: Path) -> None:
    full = tmp_path / "sweep"
    full.mkdir()
    (full / ".candidates.jsonl.part").symlink_to("/dev/full")
    with (
        pytest.raises(SpicaError) as refusal,
        ResultsFolder.open(tmp_path, "sweep") as folder,
    ):
        folder.append(RECORD)
    assert type(refusal.value) is SpicaError
    assert str(refusal.value) == (
        f"the results cannot be written to {full}: no space left on device"
    )


def test_a_folder_that_has_gone_is_named(tmp_path: Path) -> None:
    with ResultsFolder.open(tmp_path, "sweep") as folder:
        shutil.rmtree(folder.path)
        with pytest.raises(SpicaError) as refusal:
            folder.write_result(RESULT, pareto=False)
    assert type(refusal.value) is SpicaError
    assert str(refusal.value) == (
        f"the results cannot be written to {tmp_path / 'sweep'}: no such file or directory"
    )


def test_an_error_of_the_sweep_itself_passes_through(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError), ResultsFolder.open(tmp_path, "sweep"):
        raise ConnectionError


def test_a_folder_that_cannot_be_made_is_the_input_s_fault(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(InputError, match=r"^--output .*/file: not a directory$"),
        ResultsFolder.open(tmp_path / "file", "sweep"),
    ):
        pass

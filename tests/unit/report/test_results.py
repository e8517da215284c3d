"""The folder of a sweep, read again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from schemas.results import RankedCandidate
from spica_async.errors import InputError
from spica_async.report.results import read_entry


def entry(name: str) -> RankedCandidate:
    return RankedCandidate(
        candidate_id=name, score=1.0, objectives={}, used_gpus=1, config={}, metrics={}
    )


def write(folder: Path, *names: str, baseline: str | None = None) -> None:
    listed = [entry(name).model_dump(mode="json") for name in names]
    (folder / "front.json").write_text(json.dumps(listed))
    of_baseline = None if baseline is None else entry(baseline).model_dump(mode="json")
    (folder / "summary.json").write_text(json.dumps({"baseline": of_baseline, "status": "x"}))


def test_entries_are_found_by_their_names(tmp_path: Path) -> None:
    write(tmp_path, "sweep-agg-3", "sweep-agg-13", baseline="sweep-baseline")
    found = {
        name: read_entry(tmp_path, name).candidate_id
        for name in (None, "agg-13", "sweep-agg-3", "baseline")
    }
    assert list(found.values()) == ["sweep-agg-3", "sweep-agg-13", "sweep-agg-3", "sweep-baseline"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [("agg-4", "no candidate agg-4"), ("baseline", "no baseline")],
)
def test_what_is_not_there_is_named(tmp_path: Path, name: str, problem: str) -> None:
    write(tmp_path, "sweep-agg-3")
    with pytest.raises(InputError, match=problem):
        read_entry(tmp_path, name)


@pytest.mark.parametrize("name", [None, "baseline"])
@pytest.mark.parametrize("text", [None, "{", "3"])
def test_a_folder_without_results_is_refused(
    tmp_path: Path, name: str | None, text: str | None
) -> None:
    for file in ("ranking.json", "summary.json"):
        if text is not None:
            (tmp_path / file).write_text(text)
    with pytest.raises(InputError, match=str(tmp_path)):
        read_entry(tmp_path, name)


def test_nothing_feasible_has_no_best(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(InputError, match="nothing was feasible"):
        read_entry(tmp_path)

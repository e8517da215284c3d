"""What is known of accuracies without a replay."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.silicon import cell

from spica_async.accuracy import kept
from spica_async.accuracy.kept import keep, known_cells, table_text
from spica_async.errors import SpicaError

OURS, ANOTHER = "0" * 12, "1" * 12


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.fixture
def ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that stands for the shipped one."""
    path = tmp_path / "shipped.json"
    monkeypatch.setattr(kept, "SHIPPED", str(path))
    return path


@pytest.mark.usefixtures("ship")
def test_what_was_kept_is_known_of_its_engine_alone() -> None:
    cells = [cell(), cell(backend="sglang"), cell(model="nvidia/Kimi-K2.5-NVFP4")]
    keep(cells, OURS)
    assert known_cells(OURS) == sorted(cells, key=lambda one: (one.model, one.backend))
    assert known_cells(ANOTHER) == []
    keep([cell(failed=3)], OURS)
    assert cell(failed=3) in known_cells(OURS)
    assert len(known_cells(OURS)) == len(cells)


def test_what_is_shipped_is_known_of_its_engine_alone(ship: Path) -> None:
    assert known_cells(OURS) == []
    ship.write_text(table_text([cell()], OURS))
    assert known_cells(OURS) == [cell()]
    assert known_cells(ANOTHER) == []
    ship.write_text(table_text([cell()], OURS).replace('"settings": "1"', '"settings": "0"'))
    assert known_cells(OURS) == []


@pytest.mark.parametrize(("points", "expected"), [(12, "ours"), (40, "ours"), (3, "shipped")])
def test_of_two_the_one_of_more_points_is_known(ship: Path, points: int, expected: str) -> None:
    ship.write_text(table_text([cell(measured_as=["shipped"])], OURS))
    keep([cell(measured_as=["ours"], points=points)], OURS)
    [known] = known_cells(OURS)
    assert known.measured_as == [expected]


def test_a_file_that_makes_no_sense_is_passed_over(ship: Path, tmp_path: Path) -> None:
    ship.write_text("no JSON")
    keep([cell()], OURS)
    folder = tmp_path / "spica-async" / "accuracy" / OURS
    (folder / "broken.json").write_bytes(b"\xff{")
    (folder / "older.json").write_text('{"fingerprint": "000000000000"}')
    (folder / "folder.json").mkdir()
    assert known_cells(OURS) == [cell()]


@pytest.mark.usefixtures("ship")
def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "spica-async").write_text("")
    with pytest.raises(SpicaError, match=r"^the accuracy cannot be kept: .*: not a directory$"):
        keep([cell()], OURS)
    assert known_cells(OURS) == []

"""Pages of candidates from their file, whatever has become of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fake_control import record

from spica_async.errors import InputError, SpicaError
from spica_async.service import stored
from spica_async.service.stored import candidate_page


def written(folder: Path, count: int) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "candidates.jsonl"
    lines = [record(number).model_dump_json() + "\n" for number in range(count)]
    path.write_text("".join(lines))
    return path


async def test_a_page_leaves_out_what_is_before_it_and_a_line_that_is_being_written(
    tmp_path: Path,
) -> None:
    with written(tmp_path, 5).open("a") as file:
        file.write('{"half')

    page = await candidate_page(tmp_path, offset=3, limit=10)
    after = await candidate_page(tmp_path, offset=2**31 - 1, limit=10)
    gone = await candidate_page(tmp_path / "gone", offset=0, limit=10)

    assert (page.total, page.candidates) == (5, [record(3), record(4)])
    assert (after.total, after.candidates) == (5, [])
    assert (gone.total, gone.candidates) == (0, [])


async def problem(folder: Path) -> str:
    with pytest.raises(SpicaError) as raised:
        await candidate_page(folder, offset=1, limit=10)
    assert not isinstance(raised.value, InputError)
    return str(raised.value)


async def test_a_line_that_is_no_candidate_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, 3)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], lines[1], '{"candidate_id": 1}\n']))

    assert await problem(tmp_path) == f"{path}: line 3 is no candidate"


async def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "candidates.jsonl"
    path.mkdir()

    assert await problem(tmp_path) == f"{path}: is a directory"


async def test_a_file_on_a_share_that_has_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, 3)

    def stale(*_: object) -> None:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(stored, "_line_starts", stale)

    assert await problem(tmp_path) == f"{path}: stale file handle"

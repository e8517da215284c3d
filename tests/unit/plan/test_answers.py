from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import TypeAdapter
from structlog.testing import capture_logs

from spica_async.plan import answers
from spica_async.plan.answers import Answers, answers_folder

NUMBER = TypeAdapter(int)
QUESTION = ("how many", {"b": 1, "a": [2, None]})
DAY = 24 * 3600


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def never() -> int:
    pytest.fail("asked again")


def kept() -> Path:
    (path,) = answers_folder().iterdir()
    return path


def folder(engine: str) -> Path:
    (path,) = answers_folder().glob(f"{engine}-*")
    return path


def recall(ask: Callable[[], int]) -> int:
    return Answers.open().recall(QUESTION, NUMBER, ask)


def test_an_answer_outlives_the_process_and_the_order_of_its_question() -> None:
    assert recall(lambda: 7) == 7
    known = Answers.open()
    assert known.recall(("how many", {"a": [2, None], "b": 1}), NUMBER, never) == 7
    assert known.known(("how many", {"a": [2, 0], "b": 1}), NUMBER) is None


def test_another_engine_is_asked_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    recall(lambda: 7)
    monkeypatch.setattr(answers, "engine_fingerprint", lambda: "other")
    assert recall(lambda: 8) == 8
    assert len(list(answers_folder().iterdir())) == 2


def test_an_error_is_no_answer() -> None:
    with pytest.raises(ZeroDivisionError):
        recall(lambda: 1 // 0)
    assert recall(lambda: 7) == 7


@pytest.mark.parametrize("spoilt", [b'"seven"', b"", b"not JSON"])
def test_what_cannot_be_read_is_asked_again_and_kept(spoilt: bytes) -> None:
    recall(lambda: 7)
    (file,) = kept().iterdir()
    file.write_bytes(spoilt)
    assert recall(lambda: 8) == 8
    assert recall(never) == 8


def test_what_cannot_be_written_is_still_read(monkeypatch: pytest.MonkeyPatch) -> None:
    recall(lambda: 7)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with capture_logs() as said:
        known = Answers.open()
        known.keep(("another",), NUMBER, 8)
        known.keep(("one more",), NUMBER, 9)
        assert known.recall(QUESTION, NUMBER, never) == 7
        assert known.known(("another",), NUMBER) is None
    assert [entry["event"] for entry in said] == ["plan.answers_not_kept"]


def test_a_cache_that_cannot_be_had_costs_time_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with capture_logs() as said:
        assert recall(lambda: 7) == 7
        assert recall(lambda: 8) == 8
    assert [entry["event"] for entry in said] == ["plan.answers_not_kept"] * 2


def test_two_processes_share_it() -> None:
    one, other = Answers.open(), Answers.open()
    assert one.recall(QUESTION, NUMBER, lambda: 7) == 7
    assert other.recall(QUESTION, NUMBER, never) == 7


def test_answers_of_engines_long_gone_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, days in (("old", 31), ("recent", 29)):
        monkeypatch.setattr(answers, "engine_fingerprint", lambda name=name: name)
        recall(lambda: 7)
        age = time.time() - days * DAY
        os.utime(folder(name), (age, age))
    monkeypatch.setattr(answers, "engine_fingerprint", lambda: "new")
    recall(lambda: 7)
    names = {path.name.partition("-")[0] for path in answers_folder().iterdir()}
    assert names == {"recent", "new"}
    monkeypatch.setattr(answers, "engine_fingerprint", lambda: "recent")
    recall(never)
    assert time.time() - folder("recent").stat().st_mtime < DAY

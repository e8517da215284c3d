from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def recall(ask: Callable[[], int]) -> int:
    with Answers.open() as known:
        return known.recall(QUESTION, NUMBER, ask)


def test_an_answer_outlives_the_process_and_the_order_of_its_question() -> None:
    assert recall(lambda: 7) == 7
    with Answers.open() as known:
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


def test_what_cannot_be_read_is_asked_again_and_kept() -> None:
    recall(lambda: 7)
    with sqlite3.connect(kept()) as database:
        database.execute("UPDATE answers SET answer = '\"seven\"'")
    database.close()
    assert recall(lambda: 8) == 8
    assert recall(never) == 8


def test_a_spoilt_file_is_started_anew() -> None:
    recall(lambda: 7)
    kept().write_bytes(b"not a database, and longer than the header of one" * 100)
    assert recall(lambda: 8) == 8
    assert recall(never) == 8


def test_a_spoilt_page_costs_its_answers_once() -> None:
    questions = [("number", number, "x" * 500) for number in range(200)]
    with Answers.open() as known:
        for question in questions:
            known.keep(question, NUMBER, 7)
    page = 4096
    with kept().open("r+b") as file:
        file.seek(3 * page)
        file.write(b"?" * page)
    with capture_logs() as said, Answers.open() as known:
        for question in questions:
            assert known.recall(question, NUMBER, lambda: 8) in {7, 8}
    assert [entry["event"] for entry in said] == ["plan.answers_damaged"]
    with capture_logs() as said, Answers.open() as known:
        assert known.recall(questions[-1], NUMBER, never) in {7, 8}
        assert known.recall(QUESTION, NUMBER, lambda: 9) == 9
    assert said == []


def test_what_cannot_be_written_is_still_read(monkeypatch: pytest.MonkeyPatch) -> None:
    recall(lambda: 7)
    connect = sqlite3.connect

    def read_only(path: Path, **options: Any) -> Any:
        return connect(f"file:{path}?mode=ro", uri=True, **options)

    monkeypatch.setattr(sqlite3, "connect", read_only)
    with capture_logs() as said, Answers.open() as known:
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
    with Answers.open() as one, Answers.open() as other:
        assert one.recall(QUESTION, NUMBER, lambda: 7) == 7
        assert other.recall(QUESTION, NUMBER, never) == 7


def answers_file(engine: str) -> Path:
    (path,) = answers_folder().glob(f"{engine}-*.sqlite3")
    return path


def test_answers_of_engines_long_gone_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, days in (("old", 31), ("recent", 29)):
        monkeypatch.setattr(answers, "engine_fingerprint", lambda name=name: name)
        recall(lambda: 7)
        age = time.time() - days * DAY
        os.utime(answers_file(name), (age, age))
    monkeypatch.setattr(answers, "engine_fingerprint", lambda: "new")
    recall(lambda: 7)
    names = {path.name.partition("-")[0] for path in answers_folder().iterdir()}
    assert names == {"recent", "new"}
    monkeypatch.setattr(answers, "engine_fingerprint", lambda: "recent")
    recall(never)
    assert time.time() - answers_file("recent").stat().st_mtime < DAY

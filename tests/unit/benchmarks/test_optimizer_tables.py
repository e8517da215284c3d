"""What the optimizer benchmark keeps and concludes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from pydantic import ValidationError
from synthetic import records as records_module
from synthetic.measuring import Ask, Record, Task
from synthetic.records import Records, digest_of
from synthetic.tables import goals

from schemas.journal import SamplerStats

Part = Literal["quality", "speed", "memory"]


def task(part: Part = "quality", contender: str = "fast", seed: int = 1, trials: int = 128) -> Task:
    return Task(part, contender, "smooth", 1, seed, trials)


def record(of: Task, *, best: float = 50.0, seconds: float = 0.8, peak_mb: float = 900.0) -> Record:
    asks = (Ask(99.0, 99.0), Ask(2 * seconds, seconds), Ask(2 * seconds, seconds))
    values = tuple((best if n == 127 else 1.0,) for n in range(128))
    return Record(of, asks, 10.0, peak_mb, (800.0, 900.0), SamplerStats(), values)


def verdicts(*records: Record) -> dict[str, bool]:
    return {goal.subject: goal.is_met for goal in goals(records)}


def one_code(_: object) -> str:
    return "this"


def test_a_digest_changes_with_the_sources_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records_module, "ROOT", tmp_path)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("a = 1\n")
    digest = digest_of.__wrapped__
    before = digest("code")
    (tmp_path / "code" / "notes.txt").write_text("a = 2\n")
    assert digest("code") == before
    (tmp_path / "code" / "a.py").write_text("a = 2\n")
    assert digest("code") != before


def test_a_file_of_records_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "records.jsonl"
    records = Records(path, Record, code_of=one_code)
    records.add(record(task(seed=1), best=10.0))
    records.add(record(task(seed=2), best=20.0))
    again = Records(path, Record, code_of=one_code)
    assert again[task(seed=2)] == record(task(seed=2), best=20.0)
    assert task(seed=1) in again
    assert task(seed=3) not in again
    other = Records(path, Record, code_of=lambda of: "this" if of == task(seed=2) else "other")
    assert task(seed=1) not in other
    assert task(seed=2) in other
    assert task(seed=1) not in Records(path, Record, code_of=one_code, fresh=True)
    assert path.read_text() == ""


def test_a_file_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"task": 1}\n')
    with pytest.raises(ValidationError):
        Records(path, Record, code_of=one_code)


def test_the_medians_of_the_seeds_are_compared() -> None:
    fast = [record(task(seed=n), best=best) for n, best in enumerate((10, 60, 90))]
    chance = [record(task(contender="random", seed=n), best=best) for n, best in enumerate((60,))]
    tpe = [record(task(contender="optuna_tpe", seed=n), best=61) for n in range(3)]
    assert verdicts(*fast, *chance, *tpe) == {
        "smooth, best after 128: fast against random": True,
        "smooth, best after 128: fast against optuna_tpe": False,
    }


def test_shares_that_nobody_could_distinguish_are_alike() -> None:
    fast = record(task(), best=99.95)
    gp, tpe = (record(task(contender=f"optuna_{name}"), best=100) for name in ("gp", "tpe"))
    assert list(verdicts(fast, gp, tpe).values()) == [True, True]
    assert list(verdicts(record(task(), best=99.85), gp).values()) == [False]


def test_a_search_that_is_too_short_is_not_compared() -> None:
    stock = record(task(contender="fast", trials=32))
    short = Record(stock.task, stock.asks, 1.0, 1.0, (1.0,), SamplerStats(), stock.values[:32])
    assert verdicts(short, record(task(contender="random"))) == {}


@pytest.mark.parametrize(("seconds_of_eight", "is_met"), [(1.6, True), (1.61, False)])
def test_a_warm_suggestion_is_judged_by_its_cpu_time(seconds_of_eight: float, is_met: bool) -> None:  # noqa: FBT001  # a parameter of the test
    measured = record(task("speed", trials=64), seconds=seconds_of_eight)
    assert verdicts(measured) == {"warm suggestion at 64 trials, 1 objective": is_met}


@pytest.mark.parametrize(("peak_mb", "is_met"), [(1499.0, True), (1500.0, False)])
def test_memory_is_judged_by_its_peak(peak_mb: float, is_met: bool) -> None:  # noqa: FBT001  # a parameter of the test
    measured = record(task("memory", trials=504), peak_mb=peak_mb)
    assert verdicts(measured) == {"memory over 504 trials, 1 objective": is_met}

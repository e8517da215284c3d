from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from spica_async.engine import facts, tables
from spica_async.engine.table_layout import Origin, TablesDifferError

DAY = 24 * 3600


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and an engine that knows one version of one backend."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("AICONFIGURATOR_SYSTEMS_PATH", raising=False)
    monkeypatch.setattr(tables, "_known", {})
    monkeypatch.setattr(facts, "backend_version", lambda sku, backend: "1.2")
    monkeypatch.setattr(facts, "systems_folder", lambda sku: Path("/engine/systems"))
    monkeypatch.setattr(tables, "write_tables", _write)
    return tables.tables_folder()


def _write(origin: Origin, target: Path) -> None:
    """What any number of processes may do at once, and of which each leaves a mark."""
    with (target.parents[2] / "written").open("a") as file:
        file.write(f"{origin.sku} {origin.backend} {origin.version}\n")
    time.sleep(0.05)
    (target / "whole").touch()


def _written(cache: Path) -> list[str]:
    return (cache.parent / "written").read_text().splitlines()


def _kept(cache: Path) -> list[str]:
    return sorted(entry.name for entry in cache.iterdir() if entry.is_dir())


def test_tables_are_written_once_and_found_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tables.prepared_tables("sku", "vllm")
    monkeypatch.setattr(tables, "_known", {})  # As another process.
    second = tables.prepared_tables("sku", "vllm")
    assert first is not None
    assert first == second
    assert first.version == "1.2"
    assert (first.systems / "whole").is_file()
    assert _written(cache) == ["sku vllm 1.2"]


def test_each_system_and_backend_has_its_own(cache: Path) -> None:
    asked = [("sku", "vllm"), ("sku", "sglang"), ("other", "vllm")]
    found = {tables.prepared_tables(*key) for key in asked}
    assert len(found) == len(asked)
    assert len(_kept(cache)) == len(asked)


def test_another_engine_has_its_own(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables.prepared_tables("sku", "vllm")
    monkeypatch.setattr(tables, "_known", {})
    monkeypatch.setattr(tables, "engine_fingerprint", lambda: "another")
    tables.prepared_tables("sku", "vllm")
    assert len(_kept(cache)) == 2


def test_tables_that_somebody_removed_are_written_again(cache: Path) -> None:
    first = tables.prepared_tables("sku", "vllm")
    assert first is not None
    (first.systems / "whole").unlink()
    first.systems.rmdir()
    assert tables.prepared_tables("sku", "vllm") == first
    assert (first.systems / "whole").is_file()


# Another test of this process may have loaded JAX, which warns; the children do without it.
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_processes_that_need_the_same_write_it_once(cache: Path) -> None:
    forked = multiprocessing.get_context("fork")  # Nothing of the engine is loaded here.
    processes = [
        forked.Process(target=tables.prepared_tables, args=("sku", "vllm")) for _ in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert _written(cache) == ["sku vllm 1.2"]
    assert len(_kept(cache)) == 1


def test_one_who_loses_a_race_takes_what_the_winner_wrote(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_beside_a_faster_host(origin: Origin, target: Path) -> None:
        _write(origin, target)
        winner.mkdir()
        (winner / "theirs").touch()

    first = tables.prepared_tables("sku", "vllm")
    assert first is not None
    winner = first.systems
    shutil.rmtree(winner)
    monkeypatch.setattr(tables, "write_tables", write_beside_a_faster_host)
    found = tables.prepared_tables("sku", "vllm")
    assert found is not None
    assert (found.systems / "theirs").is_file()
    assert _kept(cache) == [found.systems.name]


@pytest.mark.parametrize("error", [OSError("disk full"), TablesDifferError("vllm 1.2 on sku")])
def test_half_written_tables_are_never_used_and_the_fault_is_logged_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(origin: Origin, target: Path) -> None:
        (target / "half").touch()
        raise error

    monkeypatch.setattr(tables, "write_tables", fail)
    with capture_logs() as logs:
        assert tables.prepared_tables("sku", "vllm") is None
        assert tables.prepared_tables("sku", "vllm") is None
    (entry,) = logs
    assert entry["event"] == "tables_not_prepared"
    assert str(error) in entry["error"]
    assert len(entry["error"].splitlines()) == 1
    assert _kept(cache) == []


def test_without_a_place_to_keep_them_there_are_none(cache: Path) -> None:
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.touch()  # A file where the folder would be: not even root can write there.
    with capture_logs() as logs:
        assert tables.prepared_tables("sku", "vllm") is None
    (entry,) = logs
    assert entry["event"] == "tables_not_prepared"
    assert entry["error"] == "file exists" or entry["error"] == "not a directory"
    assert "exc_info" not in entry


def test_the_user_s_own_tables_are_left_to_the_engine(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AICONFIGURATOR_SYSTEMS_PATH", "/their/own")
    assert tables.prepared_tables("sku", "vllm") is None
    assert not cache.exists()


@pytest.mark.parametrize("error", [facts.UnknownSkuError, facts.NoPerfDatabaseError])
def test_what_was_never_measured_is_left_to_the_engine(
    cache: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def unknown(sku: str, backend: str) -> str:
        raise error(sku)

    monkeypatch.setattr(facts, "backend_version", unknown)
    with capture_logs() as logs:
        assert tables.prepared_tables("sku", "vllm") is None
    assert logs == []


def test_what_was_not_used_for_long_makes_room(cache: Path) -> None:
    now = time.time()
    ages = {"old": 31 * DAY, "young": 29 * DAY, "draft-dead": DAY, "draft-alive": 60}
    for name, age in ages.items():
        (cache / name).mkdir(parents=True)
        (cache / name / "table").touch()
        os.utime(cache / name, (now - age, now - age))
    found = tables.prepared_tables("sku", "vllm")
    assert found is not None
    assert _kept(cache) == sorted(["young", "draft-alive", found.systems.name])


def test_a_use_keeps_tables_from_growing_old(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tables.prepared_tables("sku", "vllm")
    assert found is not None
    long_ago = time.time() - 29 * DAY
    os.utime(found.systems, (long_ago, long_ago))
    monkeypatch.setattr(tables, "_known", {})
    tables.prepared_tables("sku", "vllm")
    assert time.time() - found.systems.stat().st_mtime < DAY

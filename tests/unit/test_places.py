"""Places that are named and cannot be written: seen before any work, in a few words."""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from spica_async.engine.model_files import folder_of, pack
from spica_async.errors import InputError, unforeseen
from spica_async.journal.opening import JournalOptions
from spica_async.places import process_folder, user_cache_folder
from spica_async.service.jobs import check_root
from spica_async.storage.address import FileAddress, read_address


def _loop(path: Path) -> Path:
    path.symlink_to(path)
    return path


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("file", "not a directory"),
        ("file/below/it", "not a directory"),
        ("loop/below", "too many levels of symbolic links"),
        ("x" * 300, "file name too long"),
    ],
)
def test_a_place_that_no_folder_can_have(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "file").write_text("")
    _loop(tmp_path / "loop")
    place = tmp_path / name

    with pytest.raises(InputError) as of_output:
        check_root(place)
    with pytest.raises(InputError) as of_journal:
        JournalOptions.read(f"sqlite:///{place}/journal", tmp_path)

    assert str(of_output.value) == f"--output {place}: {words}"
    assert str(of_journal.value) == f"journal {place}/journal: {words}"


def test_a_folder_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != tmp_path)

    with pytest.raises(InputError, match=r": permission denied$"):
        check_root(tmp_path / "new" / "results")
    with pytest.raises(InputError, match=r"^journal .*journal.sqlite3: permission denied$"):
        JournalOptions.read(None, tmp_path)


def test_a_parent_that_cannot_be_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, **_: object) -> os.stat_result:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(InputError, match=r": permission denied$"):
        check_root(tmp_path)


def test_a_file_system_that_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    with pytest.raises(InputError, match=r": read-only file system$"):
        check_root(tmp_path / "results")


def test_a_journal_that_is_a_folder_or_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="is a directory"):
        JournalOptions.read(f"sqlite:///{tmp_path}", tmp_path)
    path = tmp_path / "journal.sqlite3"
    path.touch()
    assert stat.S_ISREG(path.stat().st_mode)
    JournalOptions.read(None, tmp_path)
    monkeypatch.setattr(os, "access", lambda where, _mode: Path(where) != path)
    with pytest.raises(InputError, match="permission denied"):
        JournalOptions.read(None, tmp_path)


def test_nothing_is_made_by_looking(tmp_path: Path) -> None:
    check_root(tmp_path / "a" / "b")
    JournalOptions.read(None, tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_what_the_system_has_against_a_file_is_no_bug_of_ours() -> None:
    assert unforeseen(OSError(28, "No space left on device", "/a")) == "/a: no space left on device"
    assert unforeseen(OSError(28, "No space left on device", b"/\xff")).startswith(
        "/\udcff: no space"
    )
    assert unforeseen(OSError("odd")).startswith("unexpected: OSError: odd (details in ")


@pytest.fixture
def _nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user of whom no home is known."""

    def nobody(_: int) -> pwd.struct_passwd:
        raise KeyError

    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    process_folder.cache_clear()


@pytest.mark.usefixtures("_nobody")
def test_a_user_without_a_home_has_a_cache_among_the_temporary_files(tmp_path: Path) -> None:
    found = user_cache_folder()
    assert found == user_cache_folder() == tmp_path / f"spica-async-{os.getuid()}"
    assert stat.S_IMODE(found.stat().st_mode) == 0o700
    # The engine's models are in there, like all that is kept.
    files = pack({"config.json": "{}"})
    assert folder_of(files) == found / "models" / files.sha256


@pytest.mark.usefixtures("_nobody")
@pytest.mark.parametrize("how", ["open to others", "a link", "somebody else's"])
def test_a_cache_that_others_can_fill_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    trap = tmp_path / f"spica-async-{os.getuid()}"
    if how == "a link":
        trap.symlink_to(tmp_path)
    else:
        trap.mkdir()
        trap.chmod(0o777 if how == "open to others" else 0o700)
    if how == "somebody else's":
        real = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: real + 1)
        trap = trap.rename(tmp_path / f"spica-async-{os.getuid()}")

    found = user_cache_folder()

    assert found == user_cache_folder() != trap
    assert found.parent == tmp_path


def test_a_home_that_is_named_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache_folder() == tmp_path / "spica-async"


def test_a_journal_may_have_a_name_that_is_no_text(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff.sqlite3")
    found = JournalOptions.read(f"sqlite:///{tmp_path}/{name}", tmp_path)
    assert read_address(found.where) == FileAddress(tmp_path / name)

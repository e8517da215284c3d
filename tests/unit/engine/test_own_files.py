"""What the user has set is known by a digest of what it holds, not by where it lies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spica_async.engine.model_files import core_folder
from spica_async.engine.own_files import own_files, own_files_have_changed, own_settings
from spica_async.engine.versions import OWN_DATA, engine_fingerprint, engine_versions
from spica_async.errors import InputError

SYSTEMS = "AICONFIGURATOR_SYSTEMS_PATH"
MODELS = "AICONFIGURATOR_MODEL_CONFIGS_PATH"
Read = Callable[..., str]


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in own_settings():
        monkeypatch.delenv(name)
    own_files.cache_clear()
    engine_fingerprint.cache_clear()
    yield
    own_files.cache_clear()
    engine_fingerprint.cache_clear()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    """The digest, as a process finds it that is started with these variables."""

    def read(**variables: object) -> str:
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, str(value))
            own_files.cache_clear()
            found = own_files()
            return "" if found is None else found.digest

    return read


def folder_with(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_without_anything_set_the_engine_stands_alone(read: Read) -> None:
    assert read() == ""
    assert OWN_DATA not in engine_versions()
    assert not own_files_have_changed()


@pytest.mark.parametrize("name", [SYSTEMS, MODELS])
def test_where_it_lies_says_nothing(name: str, tmp_path: Path, read: Read) -> None:
    one = folder_with(tmp_path / "one", a="1", b__c="2")
    other = folder_with(tmp_path / "elsewhere" / "other", a="1", b__c="2")
    assert read(**{name: one}) == read(**{name: other}) != ""


def test_all_that_it_holds_matters(tmp_path: Path, read: Read) -> None:
    contents = [
        {"a": "1"},
        {"a": "2"},
        {"b": "1"},
        {"a": "1", "b": "1"},
        {"b__a": "1"},
        {"b__a": "1", "a": "1"},
        {"b__a": "1", "c__a": "1"},
    ]
    folders = [folder_with(tmp_path / str(n), **files) for n, files in enumerate(contents)]
    digests = {read(**{SYSTEMS: folder}) for folder in folders}
    digests |= {read(**{MODELS: folder}) for folder in folders}
    digests.add(read(**{SYSTEMS: folders[0], MODELS: folders[1]}))
    digests.add(read(**{SYSTEMS: folders[1], MODELS: folders[0]}))
    assert len(digests) == 2 * len(contents) + 2


@pytest.mark.parametrize("name", [SYSTEMS, MODELS, "AICONFIGURATOR_ANYTHING", "AIC_ANYTHING"])
def test_what_is_no_folder_matters_by_its_value(name: str, read: Read) -> None:
    digests = {read(), read(**{name: "/no/such/folder"}), read(**{name: "default"})}
    assert len(digests) == 3


def test_how_much_is_logged_has_no_say(read: Read) -> None:
    assert read(AICONFIGURATOR_LOG_LEVEL="DEBUG") == ""


def test_the_engine_s_own_folders_are_nothing_of_the_users(read: Read) -> None:
    # The engine sets them itself, in the process that has loaded it.
    here = core_folder()
    assert read(**{SYSTEMS: here / "systems", MODELS: here / "model_configs"}) == ""


def test_links_are_followed_and_never_for_ever(tmp_path: Path, read: Read) -> None:
    plain = folder_with(tmp_path / "plain", a="1", b__c="2")
    linked = folder_with(tmp_path / "linked", a="1")
    (linked / "b").symlink_to(folder_with(tmp_path / "other", c="2"))
    assert read(**{SYSTEMS: linked}) == read(**{SYSTEMS: plain})
    (linked / "b" / "back").symlink_to(linked)
    assert read(**{SYSTEMS: linked}) == read(**{SYSTEMS: plain})


def test_a_relative_path_means_the_same_for_a_child_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv(SYSTEMS, "own")
    monkeypatch.setenv(MODELS, "~/models")
    assert own_settings() == {SYSTEMS: str(tmp_path / "own"), MODELS: "/home/me/models"}


def test_what_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_with(tmp_path / "own", a="1")
    monkeypatch.setenv(SYSTEMS, str(folder))

    def refuse(path: Path, *_: object) -> object:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)  # The tests may be run by root.
    with pytest.raises(InputError, match=f"^{SYSTEMS}: {folder}/a: permission denied"):
        own_files()


def test_it_is_part_of_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = engine_fingerprint()
    monkeypatch.setenv(SYSTEMS, str(folder_with(tmp_path, a="1")))
    own_files.cache_clear()
    engine_fingerprint.cache_clear()
    assert engine_versions()[OWN_DATA] == getattr(own_files(), "digest", None)
    assert engine_fingerprint() != plain


def test_a_change_after_it_was_read_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_with(tmp_path / "own", a="1", b__c="2")
    monkeypatch.setenv(SYSTEMS, str(folder))
    assert own_files() is not None
    assert not own_files_have_changed()
    folder_with(folder, b__c="other")
    assert own_files_have_changed()
    own_files.cache_clear()
    assert not own_files_have_changed()
    (folder / "a").unlink()
    assert own_files_have_changed()

"""Which files of the daemon's host a submission may name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.commands import small_sweep

from spica_async.config.submission import ANY_FILE, NO_FILE, LocalFiles, config_from_document
from spica_async.errors import InputError


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for folder in ("traces/model", "traces-of-others", "cwd-model"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("traces/a.jsonl", "traces-of-others/a.jsonl", "secret"):
        (tmp_path / file).write_text("{}")
    (tmp_path / "traces/out").symlink_to(tmp_path / "secret")
    (tmp_path / "traces/loop").symlink_to(tmp_path / "traces/loop")
    (tmp_path / "in").symlink_to(tmp_path / "traces")
    return tmp_path / "traces"


def refusal_of(files: LocalFiles, *, trace: str | None = None, model: str | None = None) -> str:
    document = small_sweep()
    if trace is not None:
        document = document | {"workload": {"trace_path": trace}}
    if model is not None:
        document = document | {"search_space": document["search_space"] | {"model_name": model}}
    try:
        files.check(config_from_document(document))
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("path", ["a.jsonl", "none.jsonl", "../traces/a.jsonl", "../in/a.jsonl"])
def test_what_is_below_a_root_is_taken(root: Path, path: str) -> None:
    assert refusal_of(LocalFiles.below([root]), trace=f"{root}/{path}") == ""
    assert refusal_of(LocalFiles.below([root.parent / "in"]), trace=f"{root}/{path}") == ""
    assert (
        refusal_of(LocalFiles.below([root.parent / "cwd-model", root]), trace=f"{root}/{path}")
        == ""
    )


@pytest.mark.parametrize(
    "path", ["../secret", "../none", "../traces-of-others/a.jsonl", "out", "out/x", ".."]
)
def test_what_is_not_is_refused_whether_it_is_there_or_not(root: Path, path: str) -> None:
    refusal = refusal_of(LocalFiles.below([root]), trace=f"{root}/{path}")

    assert refusal == f"workload.trace_path: {root}/{path} is not below --trace-root {root}"


def test_a_link_to_itself_leads_nowhere(root: Path) -> None:
    # Where it is looked for it is not found.
    assert refusal_of(LocalFiles.below([root]), trace=f"{root}/loop") == ""


def test_a_models_folder_is_a_file_like_any_other(root: Path) -> None:
    for files in (LocalFiles.below([root]), NO_FILE):
        assert refusal_of(files, model="/etc").startswith("search_space.model_name: /etc")
    assert refusal_of(ANY_FILE, model="/etc") == ""


@pytest.mark.parametrize("model", ["~", "./cwd-model", "cwd-model", "../x", "~root/m"])
def test_any_other_name_is_the_id_of_a_model(root: Path, model: str) -> None:
    assert (
        refusal_of(LocalFiles.below([root]), model=model) == refusal_of(NO_FILE, model=model) == ""
    )


def test_a_models_folder_below_a_root_is_taken(root: Path) -> None:
    files = LocalFiles.below([root])

    assert refusal_of(files, model=str(root / "model")) == ""


def test_a_models_name_is_no_file(root: Path) -> None:
    assert refusal_of(NO_FILE) == refusal_of(NO_FILE, model="Qwen/Qwen3-8B") == ""


def test_without_a_root_the_way_to_one_is_named(root: Path) -> None:
    assert refusal_of(NO_FILE, trace="/etc/passwd") == (
        "workload.trace_path: /etc/passwd: files of the daemon's host cannot be named here;"
        " start it with --trace-root DIR for those below a folder"
    )
    assert refusal_of(ANY_FILE, trace="/etc/passwd") == ""


def test_a_root_is_a_folder(root: Path) -> None:
    for wrong in (root / "none", root / "a.jsonl", Path(os.fsdecode(b"\xff"))):
        with pytest.raises(InputError, match=r"^--trace-root "):
            LocalFiles.below([wrong])

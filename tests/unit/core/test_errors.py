"""What is kept of an error for the user."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from spica_async.errors import file_problem, first_cause, keep_traceback

TRACEBACK = "Traceback (most recent call last):\n  File ...\nValueError: no such kernel\n"


def test_a_traceback_is_kept_in_a_file_that_the_line_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    told = keep_traceback(TRACEBACK)
    (kept,) = tmp_path.iterdir()
    assert told == f"ValueError: no such kernel (details in {kept})"
    assert kept.read_text() == TRACEBACK


def test_where_nothing_can_be_kept_the_last_line_still_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    assert keep_traceback(TRACEBACK) == (
        "ValueError: no such kernel (no details could be kept: no such file or directory)"
    )


def test_the_first_cause_is_inside_of_all_groups() -> None:
    cause = ValueError("one")
    group = BaseExceptionGroup("", [ExceptionGroup("", [cause, ValueError("two")]), SystemExit()])
    assert first_cause(group) is cause
    assert first_cause(cause) is cause


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(13, "Permission denied", "/a"), "permission denied"),
        (OSError("odd\nthing"), "odd thing"),
        (ValueError("embedded null byte"), "embedded null byte"),
        (
            UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed"),
            "a name that is no text",
        ),
        (RuntimeError("Symlink loop from '/a'"), "symlink loop from '/a'"),
    ],
)
def test_what_a_path_has_against_it_is_a_few_words(
    error: OSError | ValueError | RuntimeError, words: str
) -> None:
    assert file_problem(error) == words

"""What is kept of an error for the user."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from spica_async.cli.app import app
from spica_async.cli.program import run_app
from spica_async.errors import (
    SpicaError,
    file_problem,
    first_cause,
    keep_traceback,
    printable,
    unforeseen,
)

TRACEBACK = "Traceback (most recent call last):\n  File ...\nValueError: no such kernel\n"


def test_a_traceback_is_kept_in_a_file_that_the_line_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    message = keep_traceback(TRACEBACK)
    (kept,) = tmp_path.iterdir()
    assert message == f"ValueError: no such kernel (details in {kept})"
    assert kept.read_text() == TRACEBACK


def test_where_nothing_can_be_kept_the_last_line_is_still_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    assert keep_traceback(TRACEBACK) == (
        "ValueError: no such kernel (no details could be kept: no such file or directory)"
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("as it is, é", "as it is, é"),
        ("a\nb\x1b[0m\ud800\u2028", r"a\nb\x1b[0m\ud800\u2028"),
        ("x" * 21, "x" * 20 + "..."),
    ],
)
def test_a_text_of_somebody_else_is_shown_in_one_line(text: str, shown: str) -> None:
    assert printable(text, 20) == shown


def test_the_first_cause_is_inside_of_all_groups() -> None:
    cause = ValueError("one")
    group = BaseExceptionGroup("", [ExceptionGroup("", [cause, ValueError("two")]), SystemExit()])
    assert first_cause(group) is cause
    assert first_cause(cause) is cause


def test_what_else_has_failed_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first = SpicaError("the broker is away")
    bug = KeyError("slot")
    bug.__traceback__ = None
    others = [SpicaError("no lease"), SpicaError("no lease"), SpicaError("the broker is away"), bug]
    with capture_logs() as logs:
        assert first_cause(ExceptionGroup("", [first, ExceptionGroup("", others)])) is first
    assert [line["event"] for line in logs] == ["errors.another"] * 2
    assert {line["besides"] for line in logs} == {"the broker is away"}
    # What is no error of ours is a bug, whose traceback is kept and not shown.
    (kept,) = tmp_path.iterdir()
    assert [line["error"] for line in logs] == [
        "no lease",
        f"KeyError: 'slot' (details in {kept})",
    ]


def test_one_error_alone_logs_nothing() -> None:
    with capture_logs() as logs:
        first_cause(ExceptionGroup("", [ValueError("one")]))
        first_cause(ValueError("one"))
    assert logs == []


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


def test_a_full_disk_behind_the_output_is_no_bug() -> None:
    message = unforeseen(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert message == "the output cannot be written: no space left on device"


def test_a_current_folder_that_was_removed_is_bad_input(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(SystemExit) as end:
        run_app(app)
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("error: the current folder: no such file or direct")

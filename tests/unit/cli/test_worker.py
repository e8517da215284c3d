"""The options of a worker, read and refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from spica_async.bus.address import BrokerAddress
from spica_async.cli import worker as cli
from spica_async.cli.program import run_app
from spica_async.errors import SpicaError
from workers.settings import WorkerOptions
from workers.traces import TraceCache

BUS = ("--bus", "amqp://user:secret@broker")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs the command and returns its exit code, and what it would have worked with."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cli, "log_to_stderr", lambda *, as_json: None)

    def run(*arguments: str, outcome: int | Exception = 0) -> tuple[int, Any]:
        seen: list[tuple[BrokerAddress, WorkerOptions]] = []

        def work(address: BrokerAddress, options: WorkerOptions) -> int:
            seen.append((address, options))
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        monkeypatch.setattr(cli, "run_program", work)
        with pytest.raises(SystemExit) as ended:
            run_app(cli.app, arguments)
        assert isinstance(ended.value.code, int)
        return ended.value.code, seen[0] if seen else None

    return run


def test_defaults(run: Any) -> None:
    code, (address, options) = run(*BUS)
    assert code == 0
    assert str(address) == "amqp://user@broker:5672/"
    assert re.fullmatch(r"[A-Za-z0-9_-]+-\d+", options.name)
    assert options.slots >= 1
    assert (options.drain_seconds, options.heartbeat_seconds) == (30, 10)
    assert options.hard_limit_seconds == 1500
    assert options.children.log_folder is None
    assert isinstance(options.traces, TraceCache)


def test_options(run: Any, tmp_path: Path) -> None:
    _, (_, options) = run(
        *BUS,
        *("--name", "rack-7", "--slots", "1", "--drain-seconds", "0", "--heartbeat-seconds", "2"),
        *("--hard-limit-seconds", "60", "--log-folder", str(tmp_path / "logs" / "here")),
        *("--trace-cache", str(tmp_path / "traces"), "--trace-cache-mib", "7"),
    )
    assert (options.name, options.slots, options.drain_seconds) == ("rack-7", 1, 0)
    assert (options.heartbeat_seconds, options.hard_limit_seconds) == (2, 60)
    assert options.children.log_folder == tmp_path / "logs" / "here"
    assert options.children.log_folder.is_dir()
    assert options.traces.folder == tmp_path / "traces"


def test_a_hosts_name_becomes_a_queues(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "default_name", lambda: f"{'ü.example.com':>120}-17")
    _, (_, options) = run(*BUS)
    assert options.name.endswith("--example-com-17")
    assert len(options.name) == 100


@pytest.mark.parametrize(
    "arguments",
    [
        ("--bus", "http://broker"),
        ("--name", "a b"),
        ("--name", "a.b"),
        ("--name", ""),
        ("--slots", "0"),
        ("--slots", "1000000"),
        ("--drain-seconds", "-1"),
        ("--heartbeat-seconds", "0"),
        ("--heartbeat-seconds", "61"),
        ("--hard-limit-seconds", "0"),
        ("--log-folder", "/dev/null/x"),
        ("--trace-cache", "/dev/null/x"),
        ("--trace-cache-mib", "0"),
        ("--trace-schemes", "https://"),
        ("--ca", "/dev/null/x"),
    ],
)
def test_bad_options_are_refused_in_one_message(
    run: Any, capsys: pytest.CaptureFixture[str], arguments: tuple[str, str]
) -> None:
    code, worked = run(*(BUS if arguments[0] != "--bus" else ()), *arguments)
    assert (code, worked) == (2, None)
    shown = capsys.readouterr()
    assert arguments[0] in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""


def test_the_programs_code_is_the_commands(run: Any) -> None:
    assert run(*BUS, outcome=143)[0] == 143


def test_what_ends_it_is_said_in_one_line(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = run(*BUS, outcome=SpicaError("no replay can be started: no room"))
    assert code == 1
    assert capsys.readouterr().err == "error: no replay can be started: no room\n"


def test_a_bug_is_said_without_its_traceback(
    run: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run(*BUS, outcome=LookupError("what was that"))[0] == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: unexpected: LookupError: what was that (details in ")

"""The commands that speak to a daemon, as a user runs them, against a real server."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml
from support.commands import Finished, run_here, small_sweep
from support.daemon_http import SETTINGS, TOKEN, running
from support.fake_control import FakeControl, ranked, record
from support.results import RESULT

from schemas.daemon import BranchProgress, SweepDetail, SweepState, SweepSummary
from schemas.lifecycle import (
    BranchEnumerated,
    CandidateMeasured,
    Lifecycle,
    SweepFailed,
    SweepFinished,
    SweepPaused,
    SweepStarted,
)
from schemas.results import SweepStatus, Tally
from spica_async.errors import SpicaError
from spica_async.service.http.settings import HttpSettings

pytestmark = pytest.mark.timeout(30)

Spica = Callable[..., Awaitable[Finished]]


@pytest.fixture
def spica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spica]:
    """Runs `spica-async` in a thread beside the server, whose log is none of its output."""
    monkeypatch.setenv("SPICA_DAEMON_TOKEN", TOKEN)
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    yield lambda *arguments: asyncio.to_thread(run_here, tmp_path, *arguments)
    structlog.reset_defaults()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(small_sweep()))
    return path


def finished(status: SweepStatus) -> SweepFinished:
    return SweepFinished(result=RESULT.model_copy(update={"status": status}))


def refused(done: Finished, code: int, *words: str) -> None:
    """There is one line for a person, and no more."""
    assert done.code == code
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    for word in words:
        assert word in done.stderr


async def test_a_submitted_sweep_is_named(control: FakeControl, spica: Spica, config: Path) -> None:
    async with running(control) as url:
        done = await spica(
            "submit", str(config), "--priority", "5", "--no-cache", "--daemon", f"{url}/"
        )

    assert (done.code, done.stdout, done.stderr) == (0, "sweep-1\n", "")
    sweep = control.known["sweep-1"]
    assert (sweep.detail.priority, sweep.use_cache) == (5, False)


async def test_a_trace_is_looked_for_beside_the_configuration(
    control: FakeControl, spica: Spica, tmp_path: Path
) -> None:
    folder = tmp_path / "sweeps"
    folder.mkdir()
    document = small_sweep() | {"workload": {"trace_path": "trace.jsonl"}}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(document))

    async with running(control) as url:
        done = await spica("submit", "sweeps/sweep.yaml", "--daemon", url, "--json")

    assert SweepSummary.model_validate_json(done.stdout).sweep_id == "sweep-1"
    workload: Any = control.known["sweep-1"].detail.config["workload"]
    assert workload["trace_path"] == str(folder / "trace.jsonl")


async def test_a_bad_configuration_is_refused_before_anybody_is_asked(
    spica: Spica, tmp_path: Path
) -> None:
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(small_sweep(goal__targt="x")))

    done = await spica("submit", "sweep.yaml", "--daemon", "http://127.0.0.1:1")

    assert done.code == 2
    assert "goal.targt: unknown key; did you mean target?" in done.stderr


async def test_what_the_daemon_refuses_is_shown(
    control: FakeControl, spica: Spica, config: Path
) -> None:
    async with running(control) as url:
        refused(await spica("list", "--state", "asleep", "--daemon", url), 2, "state: ", "running")
        control.capacity = 0
        refused(await spica("submit", str(config), "--daemon", url), 1, url, "as many as may")
        control.refusal = SpicaError("journal: the disk is full")
        refused(await spica("list", "--daemon", url), 1, url, "the disk is full")
        control.refusal = RuntimeError("a bug")
        refused(await spica("list", "--daemon", url), 1, url, "its log has the details")


async def test_a_list(control: FakeControl, spica: Spica, sweep_id: str) -> None:
    control.change(sweep_id, state="running", feasible=3, budget=8, best_score=1234.5)
    async with running(control) as url:
        table = await spica("list", "--daemon", url)
        none = await spica("list", "--state", "failed", "--daemon", url)
        document = await spica("list", "--state", "running", "--json", "--daemon", url)

    row = next(line for line in table.stdout.splitlines() if sweep_id in line)
    for word in ("running", "3/8", "1,234", "throughput", "Qwen/Qwen3-32B", "h200_sxm"):
        assert word in row
    assert none.stdout == "no sweep is failed\n"
    assert [sweep["sweep_id"] for sweep in json.loads(document.stdout)] == [sweep_id]


async def test_a_sweep_is_shown(control: FakeControl, spica: Spica, sweep_id: str) -> None:
    progress = BranchProgress(
        branch="agg", phase="searching", round=2, found=3, target=4, attempts=9, in_flight=1
    )
    control.change(
        sweep_id,
        state="failed",
        reason="the engine broke",
        branches=[progress],
        tally=Tally(attempts=9, feasible=3, failed=1),
        feasible=3,
        best=[ranked(number) for number in (7, 5, 3)],
    )
    async with running(control) as url:
        shown = await spica("show", sweep_id, "--daemon", url)
        document = await spica("show", sweep_id, "--daemon", url, "--json")

    assert shown.code == 0
    for words in (
        f"{sweep_id} is failed: the engine broke",
        "best 3 of 3",
        "vllm agg 1 x tp 2",
        "3 feasible, 1 failed of 9 suggestions",
        f"results in results/{sweep_id}",
    ):
        assert words in shown.stdout
    assert re.search(r"agg .* searching .* 2 .* 3/4 .* 9 .* 1 ", shown.stdout)
    assert SweepDetail.model_validate_json(document.stdout) == control.known[sweep_id].detail


async def test_sweeps_are_stopped_and_resumed(
    control: FakeControl, spica: Spica, sweep_id: str
) -> None:
    async with running(control) as url:
        paused = await spica("pause", sweep_id, "--daemon", url)
        resumed = await spica("resume", sweep_id, "--daemon", url)
        cancelled = await spica("cancel", sweep_id, "--daemon", url, "--json")
        refused(await spica("pause", sweep_id, "--daemon", url), 2, sweep_id, "cancelled")

    assert (paused.code, paused.stdout) == (0, f"{sweep_id} is paused\n")
    assert (resumed.code, resumed.stdout) == (0, f"{sweep_id} is queued\n")
    assert SweepSummary.model_validate_json(cancelled.stdout).state == "cancelled"


@pytest.mark.parametrize("command", ["show", "watch", "cancel", "resume"])
@pytest.mark.parametrize("name", ["no body?", "../sweeps"])
async def test_an_unknown_sweep_is_bad_input(
    control: FakeControl, spica: Spica, command: str, name: str
) -> None:
    async with running(control) as url:
        done = await spica(command, name, "--daemon", url)

    refused(done, 2, "there is no sweep", name)


@pytest.mark.parametrize(
    ("last", "code"),
    [
        (finished("completed"), 0),
        (finished("nothing_feasible"), 3),
        (SweepPaused(reason="the daemon was stopped"), 130),
        (SweepPaused(kind="sweep.cancelled", reason="asked for"), 130),
        (SweepFailed(reason="the engine broke"), 1),
    ],
    ids=["completed", "nothing feasible", "interrupted", "cancelled", "failed"],
)
async def test_a_sweep_is_watched_to_its_end(
    control: FakeControl, spica: Spica, sweep_id: str, last: Lifecycle, code: int
) -> None:
    branch = BranchEnumerated(branch="agg", backends=["vllm"], configurations=12, parameters=[])
    happened = [
        CandidateMeasured(candidate=record(2)),
        CandidateMeasured(candidate=record(3, feasible=False)),
    ]
    state: SweepState | None = "interrupted" if last.kind == "sweep.paused" else None
    async with running(control) as url:
        watching = asyncio.ensure_future(spica("watch", sweep_id, "--daemon", url))
        await control.listened()
        await control.publish(sweep_id, SweepStarted(run=1), branch, *happened, last, state=state)
        done = await watching

    assert done.code == code
    assert done.stderr == ""
    assert done.stdout.splitlines()[:4] == [
        "started",
        "agg: 12 parallel configurations for vllm",
        "[3.0 s] agg round 1: vllm agg 1 x tp 2, round_robin: 200 tok/s",
        "[4.0 s] agg round 1: vllm agg 1 x tp 2, round_robin: failed: build_error: it broke",
    ]
    ended = control.known[sweep_id].detail.state
    assert f"{sweep_id} is {ended}: " in done.stdout


async def test_neither_a_pause_nor_an_earlier_failure_ends_a_watch(
    control: FakeControl, spica: Spica, sweep_id: str
) -> None:
    await control.publish(sweep_id, SweepFailed(reason="at first"), SweepStarted(run=2))
    control.change(sweep_id, state="running")
    async with running(control) as url:
        watching = asyncio.ensure_future(spica("watch", sweep_id, "--daemon", url))
        await control.listened()
        await control.publish(sweep_id, SweepPaused(reason="asked for"))
        await asyncio.sleep(0.5)
        assert not watching.done()
        await control.publish(sweep_id, SweepStarted(run=3), finished("completed"))
        done = await watching

    assert done.code == 0
    assert done.stdout.splitlines()[:5] == [
        "failed: at first",
        "started again (run 2)",
        "paused: asked for",
        "started again (run 3)",
        "completed: it is done",
    ]


@pytest.mark.parametrize(("best", "code"), [([], 3), ([ranked(3)], 0)])
async def test_a_sweep_whose_time_was_up_is_judged_by_what_it_has_found(
    control: FakeControl, spica: Spica, sweep_id: str, best: list[Any], code: int
) -> None:
    control.change(sweep_id, best=best)
    await control.publish(sweep_id, finished("time_limit"))
    async with running(control) as url:
        done = await spica("watch", sweep_id, "--json", "--daemon", url)

    assert done.code == code
    assert SweepDetail.model_validate_json(done.stdout).state == "time_limit"
    assert "time_limit: it is done" in done.stderr


async def test_a_sweep_is_submitted_and_watched(
    control: FakeControl, spica: Spica, config: Path
) -> None:
    async with running(control) as url:
        watching = asyncio.ensure_future(spica("submit", str(config), "--watch", "--daemon", url))
        await control.listened()
        await control.publish(
            "sweep-1", CandidateMeasured(candidate=record(2)), finished("completed")
        )
        done = await watching

    assert done.code == 0
    assert done.stdout.splitlines()[0] == "sweep-1"
    assert "200 tok/s" in done.stdout.splitlines()[1]


@asynccontextmanager
async def on_a_fixed_port(control: FakeControl) -> AsyncIterator[HttpSettings]:
    """Settings with a port that was free a moment ago."""
    async with running(control) as url:
        port = int(url.rpartition(":")[2])
    yield replace(SETTINGS, port=port)


async def test_a_watch_outlives_the_daemon_and_shows_nothing_twice(
    control: FakeControl, spica: Spica, sweep_id: str
) -> None:
    control.change(sweep_id, state="running")
    async with on_a_fixed_port(control) as settings:
        async with running(control, settings) as url:
            watching = asyncio.ensure_future(spica("watch", sweep_id, "--daemon", url))
            await control.listened()
            await control.publish(sweep_id, CandidateMeasured(candidate=record(2)))
            await asyncio.sleep(0.3)
        await control.publish(sweep_id, CandidateMeasured(candidate=record(4)))
        async with running(control, settings):
            await control.listened()
            await control.publish(sweep_id, finished("completed"))
            done = await watching

    assert done.code == 0
    assert control.asked_after == [0, 2]
    assert done.stdout.count("200 tok/s") == 1
    assert done.stdout.count("400 tok/s") == 1
    assert done.stderr.count("trying again") == 1
    assert url in done.stderr


@pytest.fixture
def with_interrupts() -> Iterator[None]:
    """Have children heed Ctrl-C, also where the tests run in the background of a script."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("with_interrupts")
@pytest.mark.usefixtures("spica")
async def test_an_interrupted_watch_leaves_the_sweep_alone(
    control: FakeControl, sweep_id: str
) -> None:
    control.change(sweep_id, state="running")
    async with running(control) as url:
        command = [sys.executable, "-m", "spica_async", "watch", sweep_id, "--daemon", url]
        watching = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        await control.listened()
        await asyncio.sleep(0.2)
        watching.send_signal(signal.SIGINT)
        _, stderr = await watching.communicate()
        await control.listened(0)

    assert watching.returncode == 130
    assert stderr.decode() == f"no longer watched; {sweep_id} goes on\n"
    assert control.known[sweep_id].detail.state == "running"


async def test_nobody_answers(spica: Spica) -> None:
    refused(await spica("list", "--daemon", "http://127.0.0.1:1"), 1, "http://127.0.0.1:1")


async def test_somebody_else_answers(spica: Spica) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        refused(await spica("show", "x", "--daemon", url), 1, url, "not understood")


async def test_tokens_come_from_a_file_or_a_variable(
    control: FakeControl, spica: Spica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPICA_DAEMON_TOKEN")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    (tmp_path / "other").write_text("another-token-than-that\n")
    async with running(control) as url:
        monkeypatch.setenv("SPICA_DAEMON", url)
        refused(await spica("list"), 2, url, "a token is needed", "--token-file")
        refused(await spica("list", "--token-file", "other"), 2, "none of the daemon's")
        refused(await spica("list", "--token-file", "nowhere"), 2, "--token-file nowhere: ")
        by_file = await spica("list", "--token-file", "token")
        monkeypatch.setenv("SPICA_DAEMON_TOKEN", TOKEN)
        by_variable = await spica("list")

    assert (by_file.code, by_file.stdout) == (0, "no sweeps\n")
    assert by_variable.code == 0


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host",
        "host:8265",
        "http://",
        "",
        "http://user:secret@host",
        "http://host/?token=secret",
    ],
)
async def test_a_bad_url_names_the_option(spica: Spica, url: str) -> None:
    done = await spica("list", "--daemon", url)

    refused(done, 2, "--daemon: ")
    assert "secret" not in done.stderr


async def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; import spica_async.cli.app;"
        "print([m for m in ('httpx2', 'numpy', 'pydantic', 'rich') if m in sys.modules])"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE
    )
    stdout, _ = await process.communicate()

    assert stdout.decode().strip() == "[]"

"""Commands that are malformed, slow, or come at a bad moment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.daemon_commands import ANSWERS, Client, obeying
from support.daemons import small_config
from support.fake_control import FakeControl
from support.virtual_time import run_in_virtual_time

from schemas.config import SmartSearchConfig
from schemas.daemon import (
    SWEEP_COMMAND,
    SweepCommand,
    SweepCommandAnswered,
    SweepSubmission,
    SweepSummary,
)
from spica_async.bus.memory import MemoryBus
from spica_async.bus.port import (
    AccessRefusedError,
    Bus,
    QueueNotFoundError,
    QueueSpec,
    UnroutableError,
)
from spica_async.bus.topology import COMMANDS_QUEUE, DEAD_QUEUE, DELIVERY_LIMIT
from spica_async.config.submission import NO_FILE, LocalFiles
from spica_async.report.folder import config_document
from spica_async.storage.errors import StorageUnavailableError

RABBITMQS_CONSUMER_TIMEOUT_SECONDS = 1800


def command(**changes: Any) -> bytes:
    """A sound command to cancel, changed; None removes."""
    envelope = {
        "specversion": "1.0",
        "id": "one",
        "source": "test",
        "type": SWEEP_COMMAND,
        "time": "2026-01-02T03:04:05Z",
        "data": {"action": "cancel", "sweep_id": "x"},
        **changes,
    }
    return json.dumps({key: value for key, value in envelope.items() if value is not None}).encode()


def submit(**submission: Any) -> dict[str, Any]:
    return {"action": "submit", "submission": submission}


MALFORMED = {
    "priority": (command(data=submit(config={}, priority=500)), "submission.priority: "),
    "config": (command(data=submit(config="a: b")), "submission.config: "),
    "no config": (command(data=submit()), "submission.config: required"),
    "unknown key": (
        command(data=submit(config={}, priorty=5)),
        "submission.priorty: unknown key; did you mean priority?",
    ),
    "action": (command(data={"action": "stop"}), "action: "),
    "no data": (command(data=None), "data: required"),
    "no source": (command(source=None), "source: required"),
    "long": (command(data=submit(config="x" * 100_000)), "submission.config: "),
}


@pytest.mark.parametrize("kind", MALFORMED)
async def test_a_malformed_command_is_answered_with_the_field(kind: str) -> None:
    body, told = MALFORMED[kind]
    bus = MemoryBus()
    async with obeying(bus, FakeControl()) as client:
        await client.send(body, "one")
        answer = await client.answer()
        assert answer.command == "one"
        assert answer.problem is not None
        assert answer.problem.status == 422
        assert answer.problem.detail.startswith(told)
        assert len(answer.problem.detail) <= 2000
        assert await is_obeyed(client)
        assert (await bus.queue_status(DEAD_QUEUE.name)).ready == 0


UNREADABLE = {
    "no JSON": b"cancel x",
    "no text": b"\xff",
    "no envelope": b"[]",
    "no id": command(id=None, source=None),
    "an empty id": command(id=""),
}


@pytest.mark.parametrize("kind", UNREADABLE)
async def test_who_cannot_be_told_gets_a_dead_letter(kind: str) -> None:
    bus = MemoryBus()
    async with obeying(bus, FakeControl()) as client:
        await client.send(UNREADABLE[kind], "one")
        await client.send(command(data={"action": "stop"}), "two", reply_to=None)
        assert await is_obeyed(client)
        assert (await bus.queue_status(DEAD_QUEUE.name)).ready == 2
        assert (await bus.queue_status(ANSWERS.name)).ready == 0


async def is_obeyed(client: Client) -> bool:
    """Whether there is an answer to a sound command, about a sweep that nobody knows."""
    answer = await client.ask(SweepCommand(action="cancel", sweep_id="x"))
    return answer.problem is not None and answer.problem.status == 404


@pytest.mark.parametrize("deleted", [[COMMANDS_QUEUE], [DEAD_QUEUE], [COMMANDS_QUEUE, DEAD_QUEUE]])
async def test_queues_that_somebody_deletes_are_declared_again(
    bus: Bus, deleted: list[QueueSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spica_async.service.commands._LOOK_SECONDS", 0.05)
    async with obeying(bus, FakeControl()) as client:
        assert await is_obeyed(client)
        with capture_logs() as logs:
            for spec in deleted:
                await bus.delete_queue(spec.name)
            async with asyncio.timeout(30):
                while not await are_there(bus, deleted):  # noqa: ASYNC110  # a broker tells nobody
                    await asyncio.sleep(0.05)
        assert [one["event"] for one in logs].count("commands.queue_missing") == 1
        assert await is_obeyed(client)
        await client.send(b"{}", "unreadable")
        async with asyncio.timeout(30), bus.consume(DEAD_QUEUE.name, prefetch=1) as dead:
            assert (await anext(dead)).message.message_id == "unreadable"


async def are_there(bus: Bus, queues: list[QueueSpec]) -> bool:
    try:
        for spec in queues:
            await bus.queue_status(spec.name)
    except QueueNotFoundError:
        return False
    return True


class Guarded(MemoryBus):
    """A bus that may forbid to declare queues."""

    forbidden = False

    async def declare_queue(self, spec: QueueSpec) -> None:
        if self.forbidden:
            raise AccessRefusedError("not for you")
        await super().declare_queue(spec)


async def test_a_queue_that_may_not_be_declared_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spica_async.service.commands._LOOK_SECONDS", 0.01)
    monkeypatch.setattr("spica_async.service.commands._MENDING_PAUSE_SECONDS", 0.01)
    bus = Guarded()
    async with obeying(bus, FakeControl()) as client:
        await is_obeyed(client)
        bus.forbidden = True
        await bus.delete_queue(COMMANDS_QUEUE.name)
        await asyncio.sleep(0.1)
        with pytest.raises(UnroutableError):
            await is_obeyed(client)
        bus.forbidden = False
        await bus.declare_queue(COMMANDS_QUEUE)
        assert await is_obeyed(client)


class SlowControl(FakeControl):
    """Verbs wait until they may go on, and are noted when they begin and when they have ended."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.away: dict[str, int] = {}

    async def submit(self, config: SmartSearchConfig, **how: Any) -> SweepSummary:
        return await self._slowly("submit", lambda: super(SlowControl, self).submit(config, **how))

    async def cancel(self, sweep_id: str) -> SweepSummary:
        return await self._slowly(
            f"cancel {sweep_id}", lambda: super(SlowControl, self).cancel(sweep_id)
        )

    async def pause(self, sweep_id: str) -> SweepSummary:
        return await self._slowly(
            f"pause {sweep_id}", lambda: super(SlowControl, self).pause(sweep_id)
        )

    async def _slowly(self, what: str, verb: Callable[[], Any]) -> SweepSummary:
        if self.away.get(what, 0) > 0:
            self.away[what] -= 1
            raise StorageUnavailableError("the journal is away")
        self.noted.append(what)
        if what in self.gates:
            await self.gates[what].wait()
        self.noted.append(f"{what}: done")
        made: SweepSummary = await verb()
        return made


async def test_a_slow_submission_holds_up_nobody(bus: Bus) -> None:
    control = SlowControl()
    control.gates["submit"] = asyncio.Event()
    async with obeying(bus, control) as client:
        for number in range(3):
            await client.post(submission(), id_=f"submit-{number}")
        assert await is_obeyed(client)
        control.gates["submit"].set()
        answers = [await client.answer() for _ in range(3)]
    assert {one.command for one in answers} == {"submit-0", "submit-1", "submit-2"}


def submission() -> SweepCommand:
    asked = SweepSubmission(config=config_document(small_config()), use_cache=False)
    return SweepCommand(action="submit", submission=asked)


async def test_a_command_names_no_file_of_this_host_unless_it_may(tmp_path: Path) -> None:
    trace = str(tmp_path / "trace.jsonl")
    document = config_document(small_config()) | {"workload": {"trace_path": trace}}
    asked = SweepCommand(action="submit", submission=SweepSubmission(config=document))
    told = []
    for files in (NO_FILE, LocalFiles.below([tmp_path])):
        async with obeying(MemoryBus(), FakeControl(), files) as client:
            await client.post(asked)
            told.append(await client.answer())

    refused, taken = told
    assert refused.problem is not None
    assert refused.problem.status == 422
    assert refused.problem.detail.startswith(f"workload.trace_path: {trace}: files of the daemon")
    assert taken.sweep is not None


def order(action: str, sweep_id: str) -> SweepCommand:
    return SweepCommand.model_validate({"action": action, "sweep_id": sweep_id})


async def test_commands_about_one_sweep_keep_their_order() -> None:
    control = SlowControl()
    control.gates["pause a"] = asyncio.Event()
    async with obeying(MemoryBus(), control) as client:
        for sweep_id in ("a", "b"):
            for action in ("pause", "cancel"):
                await client.post(order(action, sweep_id))
        for _ in range(2):
            await client.answer()
        assert control.noted == [
            "pause a",
            "pause b",
            "pause b: done",
            "cancel b",
            "cancel b: done",
        ]
        control.gates["pause a"].set()
        for _ in range(2):
            await client.answer()
    assert control.noted[-3:] == ["pause a: done", "cancel a", "cancel a: done"]


def test_a_journal_that_is_away_for_long_lets_a_command_come_again() -> None:
    control = SlowControl()
    control.away["cancel x"] = 10**9
    bus = MemoryBus()

    async def main() -> float:
        async with obeying(bus, control) as client:
            await client.post(SweepCommand(action="cancel", sweep_id="x"), id_="one")
            began = asyncio.get_running_loop().time()
            async with bus.consume(ANSWERS.name, prefetch=1) as answers:
                delivery = await anext(answers)
            answer = SweepCommandAnswered.model_validate_json(delivery.message.body).data
            assert answer.problem is not None
            assert answer.problem.status == 503
            assert answer.problem.detail == "the journal is away"
            assert (await bus.queue_status(DEAD_QUEUE.name)).ready == 0
            return asyncio.get_running_loop().time() - began

    seconds = run_in_virtual_time(main())
    assert seconds / (DELIVERY_LIMIT + 1) < RABBITMQS_CONSUMER_TIMEOUT_SECONDS - 600
    assert seconds > 5 * 3600


async def test_what_is_given_back_keeps_its_order(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each is tried twice, half a second apart, and given back then.
    monkeypatch.setattr("spica_async.service.commands._HOLD_SECONDS", 0.2)
    control = SlowControl()
    control.away = {"pause a": 3, "pause b": 2}
    async with obeying(bus, control) as client:
        for action in ("pause", "cancel"):
            for sweep_id in ("a", "b"):
                await client.post(order(action, sweep_id))
        for _ in range(4):
            await client.answer()
    for sweep_id in ("a", "b"):
        ended = [one for one in control.noted if one.endswith(f"{sweep_id}: done")]
        assert ended == [f"pause {sweep_id}: done", f"cancel {sweep_id}: done"]

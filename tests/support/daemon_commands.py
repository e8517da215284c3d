"""Who sends commands to a daemon over a bus, and what it is answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

from schemas.daemon import (
    SWEEP_COMMAND,
    SweepCommand,
    SweepCommandAnswer,
    SweepCommandAnswered,
    SweepCommanded,
)
from spica_async.bus.port import Bus, Message, QueueSpec
from spica_async.bus.topology import COMMANDS_QUEUE, DEAD_QUEUE
from spica_async.config.submission import NO_FILE, LocalFiles
from spica_async.service.commands import Commands
from spica_async.service.port import Control

ANSWERS = QueueSpec("answers")


class Client:
    """Sends commands and reads the answers."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus

    async def ask(self, command: SweepCommand, *, id_: str | None = None) -> SweepCommandAnswer:
        sent = await self.post(command, id_=id_)
        answer = await self.answer()
        assert answer.command == sent
        return answer

    async def post(self, command: SweepCommand, *, id_: str | None = None) -> str:
        """Send a command, and wait for nothing."""
        envelope = SweepCommanded(id=id_ or uuid4().hex, source="test", data=command)
        await self.send(envelope.model_dump_json().encode(), envelope.id)
        return envelope.id

    async def send(
        self,
        body: bytes,
        id_: str,
        type_: str = SWEEP_COMMAND,
        *,
        reply_to: str | None = ANSWERS.name,
    ) -> None:
        await self.bus.publish(COMMANDS_QUEUE.name, Message(body, id_, type_, reply_to))

    async def answer(self) -> SweepCommandAnswer:
        """The next answer, whatever it answers."""
        async with (
            asyncio.timeout(30),
            self.bus.consume(ANSWERS.name, prefetch=1) as answers,
        ):
            delivery = await anext(answers)
            await delivery.ack()
        return SweepCommandAnswered.model_validate_json(delivery.message.body).data


@asynccontextmanager
async def obeying(bus: Bus, control: Control, files: LocalFiles = NO_FILE) -> AsyncIterator[Client]:
    """Have commands obeyed while the context is open."""
    for queue in (DEAD_QUEUE, COMMANDS_QUEUE, ANSWERS):
        await bus.declare_queue(queue)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(Commands(bus, control, "spica/daemon/test", files).run())
        yield Client(bus)
        running.cancel()

"""Takes commands from a queue, and answers whoever wants an answer."""

from __future__ import annotations

import traceback
from typing import Final
from uuid import uuid4

import structlog
from pydantic import ValidationError
from tenacity import AsyncRetrying, retry_if_exception_type, wait_exponential

from schemas.config import SmartSearchConfig
from schemas.daemon import (
    SWEEP_COMMAND,
    Problem,
    SweepCommand,
    SweepCommandAnswer,
    SweepCommandAnswered,
    SweepCommanded,
    SweepSummary,
)
from spica_async.bus.port import (
    Bus,
    BusError,
    Consumer,
    Delivery,
    DeliveryLostError,
    Message,
)
from spica_async.bus.topology import COMMANDS_QUEUE, declare
from spica_async.daemon.http.submissions import config_from_document
from spica_async.daemon.port import (
    Control,
    QueueFullError,
    UnknownSweepError,
    WrongStateError,
)
from spica_async.errors import InputError, SpicaError, keep_traceback
from spica_async.journal import JournalBusyError, JournalFullError, JournalUnavailableError

_AT_ONCE: Final = 4
_LONGEST_PAUSE_SECONDS: Final = 30.0
_WORTH_WAITING_FOR: Final = (JournalBusyError, JournalFullError, JournalUnavailableError)
_LONGEST_DETAIL: Final = 2000
_STATUS: Final[tuple[tuple[type[SpicaError], int, str], ...]] = (
    (UnknownSweepError, 404, "no such sweep"),
    (WrongStateError, 409, "not in this state"),
    (QueueFullError, 503, "queue full"),
    (InputError, 422, "bad input"),
    (SpicaError, 500, "failed"),
)

log = structlog.get_logger(__name__)


class UnreadableCommandError(SpicaError):
    """The message is no command."""


class Commands:
    """Does what the messages of the command queue say, each once it is safe in the journal.

    A command that cannot be read is dead-lettered. One that cannot be obeyed is answered so, or
    logged where nobody waits for an answer. While the journal is away a few commands are held, and
    the others wait in the queue.

    A command may come again when its daemon dies before it is acknowledged. That does no harm:
    a sweep that was submitted by a command is named after the command's id.

    Args:
        bus: that has the queue.
        control: does what is asked.
        source: who answers, e.g. `spica/daemon/host`.
    """

    def __init__(self, bus: Bus, control: Control, source: str) -> None:
        self._bus = bus
        self._control = control
        self._source = source

    async def run(self) -> None:
        """Obey for good.

        Raises:
            BusError: the queue cannot be had, or the bus is away for too long.
        """
        await declare(self._bus, COMMANDS_QUEUE)
        async with self._bus.consume(COMMANDS_QUEUE.name, prefetch=_AT_ONCE) as consumer:
            await self._obey_all(consumer)

    async def _obey_all(self, consumer: Consumer) -> None:
        async for delivery in consumer:
            try:
                await self._handle(delivery)
            except DeliveryLostError:
                log.info("commands.delivery_lost", command=delivery.message.message_id)

    async def _handle(self, delivery: Delivery) -> None:
        message = delivery.message
        try:
            command = _read(message)
        except UnreadableCommandError as error:
            log.warning("commands.unreadable", error=str(error)[:_LONGEST_DETAIL])
            await delivery.nack(requeue=False)
            return
        answer = SweepCommandAnswer(command=command.id)
        try:
            answer = answer.model_copy(update={"sweep": await self._obey_in_the_end(command)})
        except SpicaError as error:
            problem = _problem(error)
            log.warning("commands.refused", command=command.id, detail=problem.detail)
            answer = answer.model_copy(update={"problem": problem})
        except Exception:  # noqa: BLE001  # a bug of ours: that command would come again for ever
            detail = f"unexpected: {keep_traceback(traceback.format_exc())}"
            log.error("commands.failed", command=command.id, detail=detail)  # noqa: TRY400  # it is in a file
            problem = Problem(title="failed", status=500, detail=detail)
            answer = answer.model_copy(update={"problem": problem})
        await self._answer(message, answer)
        await delivery.ack()

    async def _obey_in_the_end(self, command: SweepCommanded) -> SweepSummary:
        """Obey a command as soon as there is a journal to write it to.

        It is not given back meanwhile: the queue's limit on that would be reached in no time.
        """
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(_WORTH_WAITING_FOR),
            wait=wait_exponential(multiplier=0.5, max=_LONGEST_PAUSE_SECONDS),
            before_sleep=lambda state: log.warning(
                "commands.journal_away",
                error=str(state.outcome.exception() if state.outcome else ""),
            ),
        ):
            with attempt:
                return await self._obey(command)
        raise AssertionError("unreachable")

    async def _obey(self, command: SweepCommanded) -> SweepSummary:
        data: SweepCommand = command.data
        if data.action == "submit":
            if data.submission is None:
                raise InputError("submission: required")
            config: SmartSearchConfig = config_from_document(data.submission.config)
            return await self._control.submit(
                config,
                priority=data.submission.priority,
                use_cache=data.submission.use_cache,
                token=command.id,
            )
        if data.sweep_id is None:
            raise InputError("sweep_id: required")
        match data.action:
            case "cancel":
                return await self._control.cancel(data.sweep_id)
            case "pause":
                return await self._control.pause(data.sweep_id)
            case "resume":
                return await self._control.resume(data.sweep_id)

    async def _answer(self, message: Message, answer: SweepCommandAnswer) -> None:
        if message.reply_to is None:
            return
        envelope = SweepCommandAnswered(source=self._source, subject=answer.command, data=answer)
        body = envelope.model_dump_json(exclude_none=True).encode()
        try:
            await self._bus.publish(message.reply_to, Message(body, uuid4().hex, envelope.type))
        except BusError as error:
            log.warning("commands.answer_lost", command=answer.command, error=str(error))


def _read(message: Message) -> SweepCommanded:
    if message.type != SWEEP_COMMAND:
        raise UnreadableCommandError(f"type {message.type!r}")
    try:
        return SweepCommanded.model_validate_json(message.body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UnreadableCommandError(f"{where}: {first['msg']}") from error


def _problem(error: SpicaError) -> Problem:
    for kind, status, title in _STATUS:
        if isinstance(error, kind):
            return Problem(title=title, status=status, detail=str(error))
    raise AssertionError(error)

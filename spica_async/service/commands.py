"""Carries out the commands of the command queue, and answers those that ask for an answer."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4
from weakref import WeakValueDictionary

import structlog
from pydantic import Field, ValidationError
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential

from schemas.base import MessageModel
from schemas.daemon import (
    SWEEP_COMMAND,
    Problem,
    SweepCommand,
    SweepCommandAnswer,
    SweepCommandAnswered,
    SweepCommanded,
    SweepSummary,
)
from spica_async.bus.port import Bus, BusError, Consumer, Delivery, DeliveryLostError, Message
from spica_async.bus.topology import COMMANDS_QUEUE, DEAD_QUEUE, DELIVERY_LIMIT, declare, exists
from spica_async.config.load import describe
from spica_async.config.submission import NO_FILE, LocalFiles, config_from_document
from spica_async.documents import decode, parse_json
from spica_async.errors import InputError, SpicaError, keep_traceback
from spica_async.journal.port import SweepUnknownError
from spica_async.processes.threads import computed, with_files
from spica_async.service.port import Control, QueueFullError, WrongStateError
from spica_async.storage.errors import StorageBusyError, StorageFullError, StorageUnavailableError

_AT_ONCE: Final = 16
_LONGEST_PAUSE_SECONDS: Final = 30.0
_HOLD_SECONDS: Final = 15 * 60.0
"""Half of RabbitMQ's own consumer_timeout. A command comes back to us at once and may do so 20
times, so that it outlasts a journal that is away for five hours; after an hour and a half, were it
given back every five minutes."""
_LOOK_SECONDS: Final = 5.0
_MENDING_PAUSE_SECONDS: Final = 1.0
_WORTH_WAITING_FOR: Final = (StorageBusyError, StorageFullError, StorageUnavailableError)
_LONGEST_DETAIL: Final = 2000
_STATUS: Final[tuple[tuple[type[SpicaError], int, str], ...]] = (
    (SweepUnknownError, 404, "no such sweep"),
    (WrongStateError, 409, "not in this state"),
    (QueueFullError, 503, "queue full"),
    *((kind, 503, "journal away") for kind in _WORTH_WAITING_FOR),
    (InputError, 422, "bad input"),
    (SpicaError, 500, "failed"),
)

log = structlog.get_logger(__name__)


class _Sender(MessageModel):
    """What of an envelope has to be sound for its sender to be answered."""

    id: str = Field(min_length=1)


@dataclass(slots=True, weakref_slot=True)
class _Line:
    """The commands in hand that are about one sweep, which are obeyed one after the other.

    Attributes:
        head: held by the one that is being obeyed; the others wait for it in order.
        given_back: whether one was given back, so that those behind it have to follow.
    """

    head: asyncio.Lock = field(default_factory=asyncio.Lock)
    given_back: bool = False


class Commands:
    """Does what the messages of the command queue say, each once it is safe in the journal.

    A command that says nothing sensible, or cannot be obeyed, is answered so; where nobody waits
    for an answer the latter is logged. One that cannot be read, or not be answered, is
    dead-lettered.

    Some are in hand at a time, so that a submission whose trace takes long to check holds up
    nobody; those that are about one sweep keep their order. While the journal is away they are
    held, and the others wait in the queue. A broker lets nobody hold a message for ever, so they
    are given back in time, and obeyed when they come again. One that has come back as often as its
    queue allows is answered that the journal is away.

    A command may come again when its daemon dies before it is acknowledged. That does no harm:
    a sweep that was submitted by a command is known by the command's id.

    Args:
        bus: the bus that has the queue.
        control: carries out the commands.
        source: the source of the answers, e.g. `spica/daemon/host`.
        files: which files of this host a submission may name.
    """

    def __init__(
        self, bus: Bus, control: Control, source: str, files: LocalFiles = NO_FILE
    ) -> None:
        self._files = files
        self._bus = bus
        self._control = control
        self._source = source
        # A line is there for as long as a command is in it.
        self._lines: WeakValueDictionary[str, _Line] = WeakValueDictionary()

    async def run(self) -> None:
        """Obey for good.

        Raises:
            BusError: the queue cannot be had, or the bus is away for too long.
        """
        await declare(self._bus, COMMANDS_QUEUE)
        async with (
            self._bus.consume(COMMANDS_QUEUE.name, prefetch=_AT_ONCE) as consumer,
            asyncio.TaskGroup() as group,
        ):
            looking = group.create_task(self._look_after_queue())
            await self._obey_all(consumer, group)
            looking.cancel()

    async def _look_after_queue(self) -> None:
        """Declare the queue again when somebody has deleted it; its consumer waits for that."""
        is_logged = False
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                if await exists(self._bus, COMMANDS_QUEUE) and await exists(self._bus, DEAD_QUEUE):
                    is_logged = False
                    continue
                if not is_logged:
                    log.warning("commands.queue_missing", queue=COMMANDS_QUEUE.name)
                    is_logged = True
                # Consumers must have heard of the deletion before there is such a queue again.
                await asyncio.sleep(_MENDING_PAUSE_SECONDS)
                await declare(self._bus, COMMANDS_QUEUE)
            except BusError as error:
                # It is away, or an operator has to do this: sweeps go on in any case.
                log.warning("commands.queue_unmended", error=str(error))

    async def _obey_all(self, consumer: Consumer, group: asyncio.TaskGroup) -> None:
        async for delivery in consumer:
            try:
                command = read_command(delivery.message)
            except InputError as error:
                handling = self._refuse(delivery, str(error))
            else:
                # Joined before anything else comes, for the order of the queue.
                line = self._lines.setdefault(_about(command), _Line())
                handling = self._obey_in_line(delivery, command, line, _now())
            group.create_task(_unless_lost(delivery, handling))

    async def _refuse(self, delivery: Delivery, detail: str) -> None:
        """Answer what is no command, or dead-letter it where its sender cannot be answered."""
        command_id = _sender(delivery.message)
        if command_id is None:
            log.warning("commands.unreadable", error=detail[:_LONGEST_DETAIL])
            await delivery.nack(requeue=False)
            return
        problem = Problem(title="bad input", status=422, detail=detail)
        await self._answer(delivery.message, _refusal(command_id, problem))
        await delivery.ack()

    async def _obey_in_line(
        self, delivery: Delivery, command: SweepCommanded, line: _Line, since: float
    ) -> None:
        async with line.head:
            answer = None if line.given_back else await self._try(command, delivery, since)
            if answer is not None:
                await self._answer(delivery.message, answer)
                await delivery.ack()
                return
            if not line.given_back:
                line.given_back = True
                # What comes from now on stands in another line: it comes after those in this one.
                del self._lines[_about(command)]
            await delivery.nack(requeue=True)

    async def _try(
        self, command: SweepCommanded, delivery: Delivery, since: float
    ) -> SweepCommandAnswer | None:
        """Obey a command.

        Args:
            command: the command.
            delivery: the delivery that it came in.
            since: when it came in, by the loop's clock.

        Returns:
            The answer; none if it is to be given back, to be tried again later.
        """
        try:
            # It is not given back each time that the journal is away: the queue's limit on that
            # would be reached in no time.
            sweep: SweepSummary = await AsyncRetrying(
                retry=retry_if_exception_type(_WORTH_WAITING_FOR),
                wait=wait_exponential(multiplier=0.5, max=_LONGEST_PAUSE_SECONDS),
                stop=lambda _: _now() >= since + _HOLD_SECONDS,
                before_sleep=_log_journal_away,
                reraise=True,
            )(self._obey, command)
        except SpicaError as error:
            if isinstance(error, _WORTH_WAITING_FOR) and delivery.delivery_count < DELIVERY_LIMIT:
                log.warning("commands.given_back", command=command.id, error=str(error))
                return None
            return _refusal(command.id, _problem(error))
        except Exception:  # noqa: BLE001  # a bug of ours: that command would come again for ever
            detail = f"unexpected: {keep_traceback(traceback.format_exc())}"
            log.error("commands.failed", command=command.id, detail=detail)  # noqa: TRY400  # it is in a file
            problem = Problem(title="failed", status=500, detail=detail)
            return SweepCommandAnswer(command=command.id, problem=problem)
        return SweepCommandAnswer(command=command.id, sweep=sweep)

    async def _obey(self, command: SweepCommanded) -> SweepSummary:
        data: SweepCommand = command.data
        if data.action == "submit":
            if data.submission is None:
                raise InputError("submission: required")
            # The longest that is allowed takes seconds to read, in which others are to be obeyed.
            config = await computed(config_from_document, data.submission.config)
            await with_files(self._files.check, config)
            return await self._control.submit(
                config,
                priority=data.submission.priority,
                use_cache=data.submission.use_cache,
                token=command.id,
            )
        if data.sweep_id is None:
            raise InputError("sweep_id: required")
        order = {
            "cancel": self._control.cancel,
            "pause": self._control.pause,
            "resume": self._control.resume,
        }[data.action]
        return await order(data.sweep_id)

    async def _answer(self, message: Message, answer: SweepCommandAnswer) -> None:
        if message.reply_to is None:
            return
        envelope = SweepCommandAnswered(source=self._source, subject=answer.command, data=answer)
        body = envelope.model_dump_json(exclude_none=True).encode()
        try:
            await self._bus.publish(message.reply_to, Message(body, uuid4().hex, envelope.type))
        except BusError as error:
            log.warning("commands.answer_lost", command=answer.command, error=str(error))


async def _unless_lost(delivery: Delivery, handling: Coroutine[Any, Any, None]) -> None:
    try:
        await handling
    except DeliveryLostError:
        log.info("commands.delivery_lost", command=delivery.message.message_id)


def read_command(message: Message) -> SweepCommanded:
    """The command that a message is.

    Raises:
        InputError: it is none.
    """
    if message.type != SWEEP_COMMAND:
        raise InputError(f"type {message.type!r}")
    try:
        return SweepCommanded.model_validate(parse_json(decode(message.body)))
    except InputError as error:
        problems = [str(error)]
    except ValidationError as error:
        problems = describe(error, SweepCommanded)
    # Fields are named as a sender thinks of them, within what it asks.
    raise InputError(
        "\n".join(
            line.removeprefix("data.").removeprefix("submission.config.") for line in problems
        )
    )


def _sender(message: Message) -> str | None:
    """The id of what was to be a command; None: there is nobody to be answered."""
    if message.type != SWEEP_COMMAND or message.reply_to is None:
        return None
    try:
        return _Sender.model_validate_json(message.body).id
    except ValidationError:
        return None


def _refusal(command_id: str, problem: Problem) -> SweepCommandAnswer:
    detail = problem.detail[:_LONGEST_DETAIL]
    log.warning("commands.refused", command=command_id, detail=detail)
    problem = problem.model_copy(update={"detail": detail})
    return SweepCommandAnswer(command=command_id, problem=problem)


def _about(command: SweepCommanded) -> str:
    """The sweep that a command is about; until it has a name, its submission stands for it."""
    data = command.data
    return f"submission {command.id}" if data.action == "submit" else data.sweep_id or ""


def _log_journal_away(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome is not None else None
    log.warning("commands.journal_away", error=str(error or ""))


def _now() -> float:
    return asyncio.get_running_loop().time()


def _problem(error: SpicaError) -> Problem:
    for kind, status, title in _STATUS:
        if isinstance(error, kind):
            return Problem(title=title, status=status, detail=str(error))
    raise AssertionError(error)

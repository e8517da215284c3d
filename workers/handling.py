"""What becomes of one request: from a delivery to a result with the bus, and how to settle it.

The result is with the bus before its request is acknowledged. So whatever goes wrong in between, a
request may be evaluated twice but is never lost.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog

from schemas.messages import (
    Cause,
    EvaluationCompleted,
    EvaluationRequest,
    EvaluationResult,
    Measurement,
    TraceLoad,
)
from spica_async.bus.counted import CountedWarnings
from spica_async.bus.port import (
    AccessRefusedError,
    Bus,
    BusError,
    BusUnavailableError,
    Delivery,
    Message,
    QueueNotFoundError,
    Settlement,
    UnroutableError,
)
from workers.holdings import EvaluationCancelledError, Holding, Holdings
from workers.ledger import Ledger, key_of
from workers.memory import MemoryGuard
from workers.messages import AddressedRequest, MalformedMessageError, parse_request
from workers.own_data import check_own_data, with_model_folder
from workers.port import ChildDeaths, EvaluationSlot, TraceProvider, UnavailableError
from workers.presence import Presence, worker_source

_FRESH_FOR = timedelta(seconds=30)
"""Of a newer request nobody asks whether it is still awaited: that costs a millisecond."""
_LACKING_DELIVERIES = 3
"""A trace that so many deliveries before this one could not be had for will not be waited for."""
_PASSING = frozenset[Cause | None](
    {"trace_unavailable", "model_unavailable", "performance_data_changed"}
)
"""Causes that may be gone when a request comes again."""
_SUSPECT_DELIVERIES = 10
"""What came back so often, and not for restarts of brokers and fleets, may be what takes its
workers down."""
_SUSPECT_WAIT_SECONDS = 60.0
_SUSPECT_PAUSE_SECONDS = 2.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Handled:
    """How to settle a delivery; with `trouble` the slot had better pause before the next one."""

    settlement: Settlement
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class Shared:
    """What all slots of one worker share.

    Attributes:
        bus: Where requests come from and results go to.
        queue: The name of the requests' queue.
        holdings: The evaluations that any slot holds.
        presence: Publishes what becomes of slots and evaluations.
        warnings: Counts what is out of order.
        stopping: Once set, nothing new is taken.
    """

    bus: Bus
    queue: str
    holdings: Holdings
    presence: Presence
    warnings: CountedWarnings
    stopping: asyncio.Event


class Handler:
    """Handles the requests that a worker's slots take, each in the task of its slot.

    Args:
        shared: What the worker's slots share.
        worker: Its name, which stands in results.
        guard: Refuses loads that a slot has no memory for.
        hard_limit_seconds: Bounds an evaluation with all its children's starts; none: no bound.
        traces: Where children find traces; none: where the request says.
    """

    def __init__(
        self,
        shared: Shared,
        *,
        worker: str,
        guard: MemoryGuard,
        hard_limit_seconds: float | None,
        traces: TraceProvider | None,
    ) -> None:
        self._shared = shared
        self._warnings = shared.warnings
        self._worker = worker
        self._guard = guard
        self._hard_limit_seconds = hard_limit_seconds
        self._traces = traces
        self._ledger = Ledger()
        self._one_suspect = asyncio.Lock()
        self._log = log.bind(worker=worker)

    async def handle(self, slot: EvaluationSlot, delivery: Delivery) -> Handled:
        """Answer a delivered request, as a rule with an evaluation in this slot.

        Raises:
            ChildStartError: the slot cannot evaluate any more; the request is not answered.
        """
        try:
            addressed = parse_request(delivery.message)
        except MalformedMessageError as error:
            self._warnings.add("malformed_message", error.kind, error=str(error))
            return Handled(Settlement.REJECTED)
        if await self._is_orphan(addressed, delivery.delivery_count):
            return Handled(Settlement.ACKED)
        try:
            # Held until the answer is with the bus: to be looked for in vain is to be sent again.
            async with self._shared.holdings.hold(addressed.request) as holding:
                answer = await self._answer(slot, addressed, holding, delivery.delivery_count)
                return await self._publish(addressed, answer)
        except EvaluationCancelledError:
            if not slot.is_warm:
                await slot.end()
            self._log.info("worker.evaluation_cancelled", evaluation=_id(addressed))
            return Handled(Settlement.ACKED)
        except UnavailableError as error:
            self._warnings.add(error.cause, error=str(error))
            return Handled(Settlement.RETURNED, trouble=str(error))

    async def _is_orphan(self, addressed: AddressedRequest, delivery_count: int) -> bool:
        """Whether nobody waits for the result any more, because its queue is gone."""
        if delivery_count == 0 and datetime.now(UTC) - addressed.sent_at < _FRESH_FOR:
            return False
        try:
            await self._shared.bus.queue_status(addressed.reply_to)
        except QueueNotFoundError as error:
            self._warnings.add("orphan_dropped", evaluation=_id(addressed), error=str(error))
            return True
        except BusError as error:
            # Publishing the result will show it.
            self._warnings.add("orphan_check_failed", error=str(error))
        return False

    async def _answer(
        self,
        slot: EvaluationSlot,
        addressed: AddressedRequest,
        holding: Holding,
        delivery_count: int,
    ) -> Message:
        """The result, which is measured here unless it is known, or about to be by another slot.

        Raises:
            UnavailableError: it cannot be measured now.
            ChildStartError: it cannot be measured in this slot.
        """
        request = addressed.request
        key = key_of(request)
        async with self._ledger.claim(key):
            answer = self._ledger.answer(key)
            if answer is not None:
                self._log.info("worker.answered_again", evaluation=request.evaluation_id)
                return answer
            async with self._apart_if_suspect(delivery_count):
                result = await self._measure(slot, request, holding, delivery_count)
            answer = Message.of(
                EvaluationCompleted(
                    source=worker_source(self._worker), subject=request.evaluation_id, data=result
                )
            )
            if result.measurement.cause not in _PASSING:
                # When the request comes again, the trace, or whatever it is, may be there.
                self._ledger.keep_answer(key, answer)
            return answer

    @asynccontextmanager
    async def _apart_if_suspect(self, delivery_count: int) -> AsyncIterator[None]:
        """Have one request at a time that came back often, since it may take this worker down.

        Those that it takes along come back as often, and together with it. One that is evaluated
        before it, by chance, is out of danger.
        """
        if delivery_count < _SUSPECT_DELIVERIES:
            yield
            return
        await asyncio.sleep(random.uniform(0, _SUSPECT_PAUSE_SECONDS))  # noqa: S311 - no secret
        async with AsyncExitStack() as turn:
            with suppress(TimeoutError):
                # Not for ever: a request can be held for so long only.
                async with asyncio.timeout(_SUSPECT_WAIT_SECONDS):
                    await turn.enter_async_context(self._one_suspect)
            yield

    async def _measure(
        self,
        slot: EvaluationSlot,
        request: EvaluationRequest,
        holding: Holding,
        delivery_count: int,
    ) -> EvaluationResult:
        time = asyncio.get_running_loop().time
        began = time()
        deaths = self._ledger.deaths(key_of(request))
        measurement = self._guard.refusal(request.load)
        if measurement is None:
            try:
                async with self._with_local_trace(await with_model_folder(request)) as local:
                    measurement = await self._evaluate(slot, local, holding, deaths)
                await check_own_data()
            except UnavailableError as error:
                if delivery_count < _LACKING_DELIVERIES:
                    raise
                measurement = Measurement.failed(error.cause, str(error))
        return EvaluationResult(
            evaluation_id=request.evaluation_id,
            sweep_id=request.sweep_id,
            worker=self._worker,
            measurement=measurement,
            child_deaths=deaths.count,
            wall_seconds=time() - began,
            model_sha256=None if request.model is None else request.model.sha256,
        )

    @asynccontextmanager
    async def _with_local_trace(
        self, request: EvaluationRequest
    ) -> AsyncIterator[EvaluationRequest]:
        """The request as a child is to get it."""
        load = request.load
        if self._traces is None or not isinstance(load, TraceLoad):
            yield request
            return
        async with self._traces.use(load) as path:
            # What gives access to the sources is no business of a child's.
            here = load.model_copy(update={"path": str(path), "sources": []})
            yield request.model_copy(update={"load": here})

    async def _evaluate(
        self,
        slot: EvaluationSlot,
        request: EvaluationRequest,
        holding: Holding,
        deaths: ChildDeaths,
    ) -> Measurement:
        self._shared.presence.evaluation_started(request, slot.index)
        holding.has_started = True
        try:
            async with asyncio.timeout(self._hard_limit_seconds) as limit:
                return await slot.evaluate(request, deaths)
        except TimeoutError:
            if not limit.expired():
                raise
        await slot.end()
        limited = f"this worker's own limit of {self._hard_limit_seconds:g} s"
        if deaths.setting_up:
            return Measurement.failed("child_died", f"no child was set up for it within {limited}")
        return Measurement.failed("time_limit", f"still ran after {limited}")

    async def _publish(self, addressed: AddressedRequest, answer: Message) -> Handled:
        try:
            await self._shared.bus.publish(addressed.reply_to, answer)
        except (UnroutableError, BusUnavailableError) as error:
            # The answer is kept: when the request comes again, here or elsewhere, its coordinator
            # has a queue again, or is known to have none.
            self._warnings.add("result_unpublished", evaluation=_id(addressed), error=str(error))
            return Handled(Settlement.RETURNED)
        except AccessRefusedError as error:
            # That is this worker's fault, and no other's.
            self._warnings.add("result_unpublished", evaluation=_id(addressed), error=str(error))
            return Handled(Settlement.RETURNED, trouble=f"may not send results: {error}")
        except BusError as error:
            self._warnings.add("result_refused", evaluation=_id(addressed), error=str(error))
            return Handled(Settlement.REJECTED)
        return Handled(Settlement.ACKED)


def _id(addressed: AddressedRequest) -> str:
    return addressed.request.evaluation_id

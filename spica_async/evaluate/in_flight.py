"""Sends evaluation requests over the bus and hands each its one terminal result."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Final, Self

import structlog

from schemas.messages import EvaluationRequest, EvaluationResult, Measurement
from spica_async.bus.counted import CountedWarnings
from spica_async.bus.port import Bus, BusError, BusUnavailableError, Consumer, Delivery, Message
from spica_async.bus.topology import (
    DEAD_QUEUE,
    WORKER_TOPICS,
    exists,
    requests_queue,
    results_queue,
)
from spica_async.evaluate.dead_letters import DeadLetters
from spica_async.evaluate.fleet import Fleet, FleetView, FleetWatch
from spica_async.evaluate.messages import (
    Discarded,
    Outgoing,
    UnreadableResultError,
    acknowledge,
    failed_result,
    is_of_other_model,
    is_of_other_window,
    read_result,
)
from spica_async.evaluate.sending import RequestSender
from spica_async.evaluate.turns import Share

WATCH_SECONDS: Final = 5.0
"""Between one look at the queues and the next."""

LOST_AFTER_SECONDS: Final = 30.0
"""A request that neither the queue nor a worker has for so long is sent again."""

LEAVE_SECONDS: Final = 5.0
"""The longest that announcing our leaving may take."""

DEAD_LETTERS_AT_ONCE: Final = 4

log = structlog.get_logger(__name__)


class EvaluationGivenUpError(Exception):
    """Evaluations were cancelled before this one was known to run."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An evaluation that is waited for.

    Attributes:
        result: None once it is given up.
        kept: set once the result is where it cannot be lost.
    """

    result: asyncio.Future[EvaluationResult | None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    kept: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class Earlier:
    """What an earlier run of the sweep, which ended without announcing it, has left on the bus.

    Attributes:
        run: the number of this run, from 1; workers take no requests of one that has left.
        requested: evaluations whose requests were sent, and whose results may be on their way.
        ended: evaluations that have their result.
    """

    run: int = 1
    requested: Collection[str] = ()
    ended: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Watch:
    """How requests are looked after.

    Attributes:
        every_seconds: between one look at the queues and the next.
        lost_after_seconds: a request that neither the queue nor a worker has for so long is sent
            again.
    """

    every_seconds: float = WATCH_SECONDS
    lost_after_seconds: float = LOST_AFTER_SECONDS


async def _do_nothing(*_: object) -> None:
    pass


class Evaluations:
    """The requests of one coordinator: in flight until their first result, then ended for good.

    Args:
        bus: that the workers are on.
        fleet: the workers whose engine the requests are for; kept up to date while this is open.
        coordinator: our name, which is the sweep's id.
        parallel: requests that may be in flight; further ones wait their turn in order.
        on_fleet: takes each new view of the workers.
        watch: how requests are looked after.
        earlier: what is known of a run before this one.
        share: our share of the turns that several coordinators have, if they do.

    Attributes:
        announces_leaving: whether closing ends what is under way; otherwise that is for a later
            run.
        warnings: counts the messages that were dropped.
    """

    def __init__(
        self,
        bus: Bus,
        fleet: Fleet,
        *,
        coordinator: str,
        parallel: int,
        on_fleet: Callable[[FleetView], None] | None = None,
        watch: Watch = Watch(),
        earlier: Earlier = Earlier(),
        share: Share | None = None,
    ) -> None:
        self.announces_leaving = True
        self.warnings = CountedWarnings("coordinator", log)
        self._bus = bus
        self._fleet = fleet
        self._coordinator = coordinator
        self._parallel = parallel
        self._watch = watch
        self._results = results_queue(coordinator)
        self._turn = asyncio.Semaphore(parallel)
        self._share = share.turn if share is not None else nullcontext
        self._outgoing = Outgoing(coordinator, self._results.name, earlier.run)
        self._sender = RequestSender(
            bus,
            requests=requests_queue(fleet.fingerprint),
            results=self._results,
            fleet=fleet,
            lost_after_seconds=watch.lost_after_seconds,
        )
        self._fleet_watch = FleetWatch(fleet, on_fleet, self._sender.held, self.warnings)
        self._dead_letters = DeadLetters(
            bus,
            outgoing=self._outgoing,
            settle=self._settle,
            lost=self._sender.dropped,
            warnings=self.warnings,
        )
        # Their results may come before anybody has asked for them again.
        self._adopted = {evaluation_id: _Waiting() for evaluation_id in earlier.requested}
        self._waiting: dict[str, _Waiting] = dict(self._adopted)
        self._ended: set[str] = set(earlier.ended)
        self._taking: set[asyncio.Task[None]] = set()
        self._cancelled = False

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Self]:
        """Declare the queues, take results and look after requests while the context is open.

        Closing has the workers drop what they have of ours, and deletes the results queue, if
        `announces_leaving`.

        Raises:
            SpicaError: the queues are not as we need them (see `RequestSender.declare`); in a
                group, if that turns out later.
        """
        await self._adopt_or_not()
        await self._sender.declare()
        reachable = True
        try:
            async with (
                self._bus.consume(self._results.name, prefetch=self._parallel) as results,
                self._bus.consume(DEAD_QUEUE.name, prefetch=DEAD_LETTERS_AT_ONCE) as dead_letters,
                self._bus.subscribe(WORKER_TOPICS) as events,
                asyncio.TaskGroup() as group,
            ):
                tasks = [
                    group.create_task(self._receive(results, group)),
                    group.create_task(self._dead_letters.take(dead_letters)),
                    group.create_task(self._fleet_watch.hear(events)),
                    group.create_task(self._fleet_watch.show(self._watch.every_seconds)),
                    group.create_task(self._sender.watch(self._watch.every_seconds)),
                ]
                await self._bus.broadcast(self._outgoing.roll_call())
                try:
                    yield self
                finally:
                    for task in (*tasks, *self._taking):
                        task.cancel()
        except BusUnavailableError:
            reachable = False
            raise
        except BaseExceptionGroup as errors:
            reachable = errors.subgroup(BusUnavailableError) is None
            raise
        finally:
            self.warnings.report()
            if reachable and self.announces_leaving:
                await self._leave()

    @property
    def discarded(self) -> Counter[str]:
        """How many messages came as results and were not taken, by `Discarded`."""
        return self.warnings.kinds("result_discarded")

    @property
    def resent(self) -> int:
        """How many requests were sent again, since they seemed to be lost on their way."""
        return self._sender.resent

    async def evaluate(
        self,
        request: EvaluationRequest,
        *,
        on_request: Callable[[], Awaitable[None]] = _do_nothing,
        on_result: Callable[[EvaluationResult], Awaitable[None]] = _do_nothing,
    ) -> EvaluationResult:
        """Wait for a turn, send the request and wait for its result, however long that takes.

        A request that an earlier run has sent is not sent again, unless it turns out to be lost.

        Args:
            request: what to evaluate.
            on_request: awaited before the request is sent.
            on_result: awaited before the result is acknowledged.

        Raises:
            ValueError: an evaluation of that id was asked for before.
            EvaluationGivenUpError: `cancel` was called, and it was not known to run.
            SpicaError: the requests' queue cannot be had.
        """
        evaluation_id = request.evaluation_id
        adopted = self._adopted.pop(evaluation_id, None)
        if adopted is None and (evaluation_id in self._waiting or evaluation_id in self._ended):
            raise ValueError(f"evaluation {evaluation_id} was asked for before")
        waiting = adopted or self._wait_for(request)
        message = self._outgoing.request(request)
        result: EvaluationResult | None = None
        try:
            if adopted is not None:
                # It takes no turn, for it is under way: results that wait for one could fill what
                # we may hold, with those behind them that others wait for to end their turns.
                self._sender.adopt(evaluation_id, message)
                result = await adopted.result
                if result is not None and (
                    result.measurement.cause == "trace_unavailable"
                    or is_of_other_model(request, result)
                    or is_of_other_window(request, result)
                ):
                    # It named places where the earlier run has offered the trace; or an older
                    # version has sent it, which named the model's folder alone.
                    adopted.kept.set()
                    adopted, result, waiting = None, None, self._wait_for(request)
                else:
                    await _keep(result, waiting, on_result)
            if adopted is None:
                async with self._turn, self._share():
                    if await self._send(message, evaluation_id, on_request):
                        result = _as_asked(request, await waiting.result)
                    await _keep(result, waiting, on_result)
        finally:
            del self._waiting[evaluation_id]
            self._ended.add(evaluation_id)
            self._sender.ended(evaluation_id)
            self._fleet.ended(evaluation_id)
            self._fleet_watch.changed()
        if result is None:
            raise EvaluationGivenUpError(evaluation_id)
        return result

    async def _adopt_or_not(self) -> None:
        """Adopt nothing that has nowhere to send its result to; to be called before `declare`.

        A coordinator that leaves deletes the queue; without one it expires.
        """
        if self._adopted and not await exists(self._bus, self._results):
            for evaluation_id in self._adopted:
                del self._waiting[evaluation_id]
            self._adopted.clear()

    def _wait_for(self, request: EvaluationRequest) -> _Waiting:
        waiting = self._waiting[request.evaluation_id] = _Waiting()
        return waiting

    async def cancel(self, grace_seconds: float) -> None:
        """Send nothing more and give up what is not known to run, here and on the workers.

        What runs may still bring its result; workers end it after `grace_seconds`.
        """
        self._cancelled = True
        self._sender.stop()
        running = self._fleet.held(asyncio.get_running_loop().time())
        for evaluation_id, waiting in self._waiting.items():
            if evaluation_id not in running and not waiting.result.done():
                waiting.result.set_result(None)
        await self._bus.broadcast(self._outgoing.cancellation(grace_seconds))

    async def _send(
        self, message: Message, evaluation_id: str, on_request: Callable[[], Awaitable[None]]
    ) -> bool:
        """Send a request, unless all are cancelled by now; whether it was sent."""
        if not self._cancelled:
            await on_request()
        if self._cancelled:
            return False
        await self._sender.send(evaluation_id, message)
        return True

    async def _receive(self, results: Consumer, group: asyncio.TaskGroup) -> None:
        async for delivery in results:
            # Each waits until its result is kept, and the bus hands out no more than we can hold.
            task = group.create_task(self._take(delivery))
            self._taking.add(task)
            task.add_done_callback(self._taking.discard)

    async def _take(self, delivery: Delivery) -> None:
        try:
            result = read_result(delivery.message)
        except UnreadableResultError as error:
            self.warnings.add("result_discarded", error.kind, error=str(error))
            await self._fail(error)
        else:
            late = await self._settle(result)
            if late is not None:
                self.warnings.add("result_discarded", late, evaluation=result.evaluation_id)
        await acknowledge(delivery)

    async def _settle(self, result: EvaluationResult) -> Discarded | None:
        """End an evaluation with its result, once that is kept; or return why it cannot."""
        waiting = self._waiting.get(result.evaluation_id)
        if waiting is None:
            known = result.evaluation_id in self._ended
            return Discarded.LATE if known else Discarded.UNKNOWN
        if result.sweep_id != self._coordinator:
            return Discarded.OTHER_SWEEP
        if waiting.result.done():
            if waiting.result.result() is not None:
                await waiting.kept.wait()
            # Of one that is given up nothing is ever kept, and who waits for that takes nothing
            # else meanwhile.
            return Discarded.LATE
        waiting.result.set_result(result)
        await waiting.kept.wait()
        return None

    async def _fail(self, error: UnreadableResultError) -> None:
        """End the evaluation that an unreadable result is about: there will be no other."""
        waiting = self._waiting.get(error.subject or "")
        if waiting is not None and error.subject is not None:
            detail = f"the worker's result cannot be read: {error}"
            await self._settle(
                failed_result(error.subject, self._coordinator, "result_malformed", detail)
            )

    async def _leave(self) -> None:
        """Have the workers drop what they have of ours."""
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._bus.broadcast(self._outgoing.cancellation(0.0))
                await self._bus.delete_queue(self._results.name)
        except (BusError, TimeoutError) as error:
            log.warning("coordinator.left_without_goodbye", error=str(error) or "no answer")


def _as_asked(
    request: EvaluationRequest, result: EvaluationResult | None
) -> EvaluationResult | None:
    """A result, or in its place a failure: a worker of an older version measures something else."""
    if result is None:
        return None
    if is_of_other_model(request, result):
        failure = Measurement.failed(
            "model_unavailable",
            f"worker {result.worker} does not say that it has replayed the model's files: it is of"
            " an older version, which knows models by their names alone",
        )
    elif is_of_other_window(request, result):
        failure = Measurement.failed(
            "request_refused",
            f"worker {result.worker} has measured the whole run: it is of an older version, which"
            " knows no workload.window",
        )
    else:
        return result
    return result.model_copy(update={"measurement": failure})


async def _keep(
    result: EvaluationResult | None,
    waiting: _Waiting,
    on_result: Callable[[EvaluationResult], Awaitable[None]],
) -> None:
    """Have a result kept before it is acknowledged."""
    if result is not None:
        await on_result(result)
        waiting.kept.set()

"""An empty evaluation through coordinator, broker and worker, against a bare echo."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from statistics import median

from support.broker import BrokerNode

from over_broker.coordinator import empty_evaluations, many_at_once, one_by_one, opened_bus
from over_broker.echo import MOST_IN_FLIGHT, Echo, Style
from over_broker.figures import Figure
from over_broker.fleet import FleetOptions, ready, running_fleet
from over_broker.processes import Meter, running
from spica_async.bus.topology import requests_queue, results_queue

_FINGERPRINT = "round-trip"
_MOST_TIMES_AS_LONG = 2.0
_LEAST_SHARE = 0.7


@dataclass(slots=True)
class _Party:
    """Somebody who makes round trips: what one is, and what it took.

    Attributes:
        call: one round trip.
        latencies: medians of seconds, one at a time; one for each repetition.
        rates: round trips per second, many at a time; as above.
        cpu_seconds: of broker, asking and answering process; as above, while many were under way.
    """

    call: Callable[[], Awaitable[None]]
    answering_pid: int
    latencies: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)


async def measure(node: BrokerNode, *, quick: bool) -> list[Figure]:
    """Round trips of evaluations and of two echoes in turn, one at a time and 64 at a time.

    Each repetition compares them within two seconds or so; the figures are the medians of these
    ratios, so that what else the machine does hits all alike.
    """
    repetitions, alone, together = (7, 60, 300) if quick else (25, 100, 600)
    async with (
        _evaluating(node) as evaluations,
        _echoing(node, Style.GUARDED) as guarded,
        _echoing(node, Style.PLAIN) as plain,
    ):
        parties = [evaluations, guarded, plain]
        for party in parties:
            await many_at_once(party.call, together, MOST_IN_FLIGHT)
        meter = Meter(node.pid, os.getpid(), *(party.answering_pid for party in parties))
        for _ in range(repetitions):
            for party in parties:
                party.latencies.append(median(await one_by_one(party.call, alone)))
                own = Meter(node.pid, os.getpid(), party.answering_pid)
                party.rates.append(
                    together / await many_at_once(party.call, together, MOST_IN_FLIGHT)
                )
                party.cpu_seconds.append(sum(own.spent().cpu_seconds) / together)
            # Whose turn is first changes, so that a drift favours nobody.
            parties.append(parties.pop(0))
        others = f"others used {meter.spent().others_share:.0%} of the CPU"
    return [
        figure
        for echo, what in (
            (guarded, "an echo with the same guarantees"),
            (plain, "a plain echo, with one connection and a prefetch of 64"),
        )
        for figure in (
            _latency(evaluations, echo, what, others),
            _throughput(evaluations, echo, what, others),
        )
    ]


def _latency(ours: _Party, echo: _Party, what: str, others: str) -> Figure:
    return Figure(
        f"round trip of an empty evaluation at one in flight, by that of {what}",
        _ratio(ours.latencies, echo.latencies),
        "x",
        f"medians {1000 * median(ours.latencies):.2f} ms and {1000 * median(echo.latencies):.2f} ms"
        f" of {len(echo.latencies)} repetitions; {others}",
        at_most=_MOST_TIMES_AS_LONG,
    )


def _throughput(ours: _Party, echo: _Party, what: str, others: str) -> Figure:
    return Figure(
        f"empty evaluations per second at {MOST_IN_FLIGHT} in flight, by those of {what}",
        _ratio(ours.rates, echo.rates),
        "x",
        f"medians {median(ours.rates):.0f}/s and {median(echo.rates):.0f}/s of {len(echo.rates)}"
        f" repetitions; CPU {1000 * median(ours.cpu_seconds):.2f} ms and"
        f" {1000 * median(echo.cpu_seconds):.2f} ms; {others}",
        at_least=_LEAST_SHARE,
    )


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return median(our / their for our, their in zip(ours, theirs, strict=True))


@asynccontextmanager
async def _evaluating(node: BrokerNode) -> AsyncIterator[_Party]:
    fleet = FleetOptions(node.url(), _FINGERPRINT, slots=MOST_IN_FLIGHT)
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(opened_bus(fleet.url, _FINGERPRINT))
        worker = stack.enter_context(running_fleet(fleet))
        await ready(bus, fleet, worker)
        evaluate = await stack.enter_async_context(
            empty_evaluations(bus, _FINGERPRINT, MOST_IN_FLIGHT)
        )
        yield _Party(evaluate, worker.pid)


@asynccontextmanager
async def _echoing(node: BrokerNode, style: Style) -> AsyncIterator[_Party]:
    # Arguments like ours, under names that no worker of ours reads.
    requests = replace(requests_queue(_FINGERPRINT), name=f"benchmark.requests.{style}")
    answers = replace(results_queue(_FINGERPRINT), name=f"benchmark.answers.{style}")
    async with Echo.open(node.url(), requests, answers, style) as echo:
        with running("over_broker.echo", [node.url(), requests.name, style]) as process:
            yield _Party(echo.ask, process.pid)

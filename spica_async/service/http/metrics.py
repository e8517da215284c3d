"""Counts of requests and sweeps, and how late the loop is, in the format of Prometheus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from http import HTTPMethod, HTTPStatus
from typing import Final, get_args

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from schemas.daemon import SweepState
from spica_async.service.http.problems import problem_response

log = structlog.get_logger(__name__)

STATES: Final[tuple[SweepState, ...]] = get_args(SweepState)
_BUCKETS: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_LAG_BUCKETS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
_NO_ROUTE: Final = "none"
_METHODS: Final = frozenset(HTTPMethod)
LATE_SECONDS: Final = 0.25
"""By so much no step of the loop should hold up the others; a lease lasts half a minute."""
_LAG_INTERVAL_SECONDS: Final = 0.1


class Metrics:
    """What is counted of one application, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "spica_http_requests",
            "Requests by how they were answered.",
            ("method", "route", "status"),
            registry=registry,
        )
        self.seconds = Histogram(
            "spica_http_request_duration_seconds",
            "From a request's headers to those of its answer.",
            ("method", "route"),
            buckets=_BUCKETS,
            registry=registry,
        )
        self.streams = Gauge(
            "spica_http_event_streams", "Event streams that are open.", registry=registry
        )
        self.lag = Histogram(
            "spica_loop_lag_seconds",
            "How much later than it was due the event loop looked up, ten times a second.",
            buckets=_LAG_BUCKETS,
            registry=registry,
        )
        self.sweeps = Gauge("spica_sweeps", "Sweeps by their state.", ("state",), registry=registry)

    def count_sweeps(self, found: Mapping[SweepState, int] | None) -> None:
        """Set the gauge of sweeps; None: they are not known, and left out."""
        self.sweeps.clear()
        if found is None:
            return
        for state in STATES:
            self.sweeps.labels(state).set(found.get(state, 0))


class Observed:
    """The outermost middleware: counts every request, and answers for what nobody has caught."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and see how it is answered."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status: int | None = None
        seconds = 0.0

        async def watched(message: Message) -> None:
            nonlocal status, seconds
            if message["type"] == "http.response.start":
                status, seconds = message["status"], time.perf_counter() - began
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except ClientDisconnect:
            log.info("http.client_left", path=scope["path"])
        except Exception:
            log.exception("http.failed", method=scope["method"], path=scope["path"])
            if status is not None:
                # Half an answer is out; the server breaks the connection off.
                raise
            detail = "the daemon has failed at this; its log has the details"
            answer = problem_response(HTTPStatus.INTERNAL_SERVER_ERROR, detail)
            await answer(scope, receive, watched)
        finally:
            if status is not None:
                self._count(scope, status, seconds)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        # What nobody knows would make a time series for each of its names.
        route = getattr(scope.get("route"), "path", _NO_ROUTE)
        if status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED) and "route" not in scope:
            route = _NO_ROUTE
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.requests.labels(method, route, status).inc()
        self._metrics.seconds.labels(method, route).observe(seconds)


@asynccontextmanager
async def watched_loop(observe: Callable[[float], object]) -> AsyncIterator[None]:
    """Measure the loop's lag while the context is open.

    Args:
        observe: called with the lag in seconds, ten times a second.
    """
    watching = asyncio.create_task(_watch(observe))
    try:
        yield
    finally:
        watching.cancel()


async def _watch(observe: Callable[[float], object]) -> None:
    time = asyncio.get_running_loop().time
    while True:
        due = time() + _LAG_INTERVAL_SECONDS
        await asyncio.sleep(_LAG_INTERVAL_SECONDS)
        lag = max(0.0, time() - due)
        observe(lag)
        if lag > LATE_SECONDS:
            log.warning("daemon.loop_late", seconds=round(lag, 3))

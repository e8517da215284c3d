"""One connection to the broker, made again whenever it is lost."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aio_pika
import structlog
from aio_pika.abc import AbstractChannel, AbstractConnection
from aiormq.exceptions import AMQPConnectionError, InvalidFrameError
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from spica_async.bus.address import BrokerAddress
from spica_async.bus.port import AccessRefusedError, BusUnavailableError
from spica_async.bus.rabbitmq.background import in_background
from spica_async.bus.rabbitmq.errors import (
    TLS_OPTIONS,
    TransientError,
    explanation,
    translated,
)
from spica_async.bus.rabbitmq.state import BusState, OnState
from spica_async.bus.rabbitmq.tolerance import tolerate_unreadable_properties
from spica_async.tls import speaks_tls, tls_refusal

log = structlog.get_logger(__name__)

_CONNECT_SECONDS = 10.0
"""For one attempt; a host that answers nothing would else take minutes."""
_CLOSE_SECONDS = 5.0
_LOOK_SECONDS = 2.0
_LONGEST_PAUSE_SECONDS = 5.0
_SHORT_LIFE_SECONDS = 2.0
_TLS_IS_SPOKEN = (
    "TLS is spoken at this port: the URL begins with amqps://, and --ca names the certificates to"
    " trust if the system does not"
)


def retrying(
    *errors: type[Exception], on_failure: Callable[[BaseException, int], None] | None = None
) -> AsyncRetrying:
    """Calls a coroutine function until it raises none of these errors.

    The pauses between attempts are random, so that a fleet does not come back all at once.

    Args:
        errors: after which it is worth another attempt.
        on_failure: called with the error and the number of the attempt, from 1.
    """

    def before_sleep(state: RetryCallState) -> None:
        error = None if state.outcome is None else state.outcome.exception()
        if on_failure is not None and error is not None:
            on_failure(error, state.attempt_number)

    return AsyncRetrying(
        wait=wait_random_exponential(multiplier=0.1, max=_LONGEST_PAUSE_SECONDS),
        retry=retry_if_exception_type(errors),
        before_sleep=before_sleep,
    )


class Link:
    """Keeps one connection open.

    Args:
        address: of the broker.
        name: of the connection, shown by the broker's own tools.
        on_change: called with every change, and why, in one line.
    """

    def __init__(self, address: BrokerAddress, name: str, on_change: OnState) -> None:
        loop = asyncio.get_running_loop()
        self._address = address
        self._name = name
        self._on_change = on_change
        self._log = log.bind(broker=str(address), connection=name)
        self._connected: asyncio.Future[AbstractConnection] = loop.create_future()
        self._why = "not tried yet"

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        address: BrokerAddress,
        name: str,
        on_change: OnState,
        *,
        connect_seconds: float,
    ) -> AsyncIterator[Link]:
        """Connect, and stay connected while the context is open.

        Raises:
            AccessRefusedError: the broker refuses the user or the virtual host.
            BusUnavailableError: it could not be reached in `connect_seconds`.
        """
        tolerate_unreadable_properties()
        link = cls(address, name, on_change)
        async with in_background(link._keep(), name=name):
            try:
                async with asyncio.timeout(connect_seconds):
                    await link.connection()
            except TimeoutError as error:
                raise BusUnavailableError(
                    f"{address}: no connection in {connect_seconds:g} s: {link._why}"
                ) from error
            yield link

    async def connection(self) -> AbstractConnection:
        """Wait for a connection that is open as far as is known."""
        return await asyncio.shield(self._connected)

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._connected.done()

    async def open_channel(self, *, confirms: bool = False) -> AbstractChannel:
        """Wait for a connection and open a channel of its own on it.

        Raises:
            TransientError: the connection was lost meanwhile.
        """
        connection = await self.connection()
        with translated():
            channel = connection.channel(publisher_confirms=confirms, on_return_raises=confirms)
            await channel.initialize()
            return channel

    async def _keep(self) -> None:
        try:
            await self._stay_connected()
        except Exception as error:  # noqa: BLE001 - raised where a connection is wanted, now or later
            if self._connected.done():
                self._connected = asyncio.get_running_loop().create_future()
            self._connected.set_exception(error)
            # Nobody may want one any more; then it is no error.
            self._connected.exception()

    async def _stay_connected(self) -> None:
        loop = asyncio.get_running_loop()
        first = True
        while True:
            connection = await self._connect(first=first)
            first = False
            connected_at = loop.time()
            lost: asyncio.Future[str] = loop.create_future()
            connection.close_callbacks.add(lambda _, error, lost=lost: _set_lost(lost, error))
            try:
                self._connected.set_result(connection)
                self._on_change(BusState.CONNECTED, "")
                self._why = await lost
            finally:
                self._connected = loop.create_future()
                # Of a connection that is gone this only frees what the library holds.
                await _close(connection.close)
            self._log.warning("bus.connection_lost", why=self._why)
            self._on_change(BusState.CONNECTING, self._why)
            if loop.time() - connected_at < _SHORT_LIFE_SECONDS:
                # What ends connections at once would otherwise be met again without a pause.
                await asyncio.sleep(random.uniform(0, _SHORT_LIFE_SECONDS))  # noqa: S311 - no secret

    async def _connect(self, *, first: bool) -> AbstractConnection:
        # A broker that comes back may know its users only a moment later.
        worth_retrying = (TransientError,) if first else (TransientError, AccessRefusedError)
        attempts = retrying(*worth_retrying, on_failure=self._report_failure)
        connection: AbstractConnection = await attempts(self._try_to_connect)
        return connection

    async def _try_to_connect(self) -> AbstractConnection:
        with translated():
            try:
                return await aio_pika.connect(
                    self._address.full_url,
                    timeout=_CONNECT_SECONDS,
                    ssl_context=self._address.ssl_context,
                    client_properties={"connection_name": self._name},
                )
            except AMQPConnectionError as error:
                if isinstance(error.__cause__, EOFError | ConnectionResetError):
                    await self._look_at_tls()
                raise
            except InvalidFrameError as error:
                # Opening the virtual host is the last step, and the only answer to it but success
                # is this refusal, which the library does not read.
                if "Connection.OpenOk" not in str(error):
                    raise
                raise AccessRefusedError(
                    f"virtual host {self._address.virtual_host}: there is none of that name, or"
                    f" user {self._address.user} may not use it"
                ) from error

    async def _look_at_tls(self) -> None:
        """Find out whether it is for TLS that the broker has hung up on us.

        To plain AMQP a port for TLS answers in riddles. And what a broker has against our
        certificate is lost if it resets the connection, as it does when more has come from us.

        Raises:
            AccessRefusedError: it is.
        """
        own = self._address.ssl_context
        why = None
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                reader, writer = await asyncio.open_connection(
                    self._address.host,
                    self._address.port,
                    # Without certificates to trust it gets as far as seeing one.
                    ssl=own or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
                )
                try:
                    # A broker that accepts us waits for our first word.
                    await reader.read(1)
                finally:
                    writer.close()
        except ssl.SSLError as error:
            if own is not None:
                why = tls_refusal(error, TLS_OPTIONS)
            elif speaks_tls(error):
                why = _TLS_IS_SPOKEN
        except (OSError, TimeoutError):
            pass  # As before.
        if why is not None:
            raise AccessRefusedError(why)

    def _report_failure(self, error: BaseException, _: int) -> None:
        self._why = explanation(error)
        self._on_change(BusState.CONNECTING, self._why)


def _set_lost(lost: asyncio.Future[str], error: BaseException | None) -> None:
    if not lost.done():
        lost.set_result("closed" if error is None else explanation(error))


async def close_channel(channel: AbstractChannel) -> None:
    """Close a channel, whatever state it is in; bounded in time."""
    await _close(channel.close)


async def _close(close: Callable[[], Awaitable[None]]) -> None:
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            with translated():
                await close()
    except (TransientError, TimeoutError):
        pass  # It is gone one way or the other.

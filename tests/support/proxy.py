"""A TCP proxy in front of a broker that stalls, cuts and refuses connections on command.

It reads AMQP 0-9-1 frames, so that it can cut a connection right before a given method passes:
what was sent before it has arrived, the method itself has not.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from support.broker import free_port

_PROTOCOL_HEADER: Final = b"AMQP"
_METHOD_FRAME: Final = 1
_FRAME_HEAD = struct.Struct("!BHI")
_METHOD = struct.Struct("!HH")
# Linger for 0 seconds: closing sends a reset at once.
_RESET: Final = struct.pack("ii", 1, 0)


class Side(StrEnum):
    """Who sends a frame."""

    CLIENT = "client"
    SERVER = "server"


class Method:
    """Class and method ids of AMQP 0-9-1."""

    CHANNEL_OPEN_OK: Final = (20, 11)
    QUEUE_DECLARE_OK: Final = (50, 11)
    BASIC_CONSUME_OK: Final = (60, 21)
    BASIC_PUBLISH: Final = (60, 40)
    BASIC_DELIVER: Final = (60, 60)
    BASIC_ACK: Final = (60, 80)
    """From the server a confirm, from the client the end of a delivery."""
    BASIC_NACK: Final = (60, 120)


@dataclass(slots=True)
class _Trap:
    side: Side
    method: tuple[int, int]
    to_pass: int
    sprung: asyncio.Event = field(default_factory=asyncio.Event)


class TcpProxy:
    """Forwards the connections to one port of a broker on this host. Made by `tcp_proxy`."""

    def __init__(self, target_port: int) -> None:
        self.port: Final = free_port()
        self._target_port = target_port
        self._links: set[_Link] = set()
        self._listener: asyncio.Server | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._traps: list[_Trap] = []

    def url(self, broker_url: str) -> str:
        """The broker's address with the proxy's port in place of its own."""
        parts = urlsplit(broker_url)
        login, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{login}{at}127.0.0.1:{self.port}"))

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._links)

    def stall(self) -> None:
        """Forward nothing more, either way; connections stay open and new ones are taken."""
        self._flowing.clear()

    def resume(self) -> None:
        """Forward again, first what was held back."""
        self._flowing.set()

    def cut(self) -> None:
        """Reset every connection on both sides; new ones are taken."""
        for link in tuple(self._links):
            link.reset()

    def refuse(self) -> None:
        """Take no new connections: dialling fails as if nobody listened."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def accept(self) -> None:
        """Take connections, also again after `refuse`."""
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def close(self) -> None:
        """Refuse and cut, for good."""
        self.refuse()
        ending = [link.task for link in self._links if link.task is not None]
        self.cut()
        if ending:
            await asyncio.wait(ending)

    def cut_before(
        self, side: Side, method: tuple[int, int], *, occurrence: int = 1
    ) -> asyncio.Event:
        """Reset a connection instead of forwarding a method of this kind, once.

        Counts the frames that `side` sends from now on, over all connections, and hits the
        `occurrence`-th. Returns an event that is set when it has happened.
        """
        trap = _Trap(side, method, to_pass=occurrence - 1)
        self._traps.append(trap)
        return trap.sprung

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link([writer])
        self._links.add(link)
        # Cutting cancels the inner task: the outer one is the listener's, which would complain.
        async with asyncio.TaskGroup() as tasks:
            link.task = tasks.create_task(self._forward(link, reader))

    async def _forward(self, link: _Link, from_client: asyncio.StreamReader) -> None:
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._target_port)
            link.writers.append(to_server)
            async with asyncio.TaskGroup() as tasks:
                pumps = [
                    tasks.create_task(self._pump(link, Side.CLIENT, from_client, to_server)),
                    tasks.create_task(self._pump(link, Side.SERVER, from_server, link.writers[0])),
                ]
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                for pump in pumps:
                    pump.cancel()
        except OSError:  # The broker is down, and the client is to notice.
            link.reset()
        finally:
            self._links.discard(link)
            link.close()

    async def _pump(
        self,
        link: _Link,
        side: Side,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        try:
            while True:
                await self._flowing.wait()
                frame = await _read_frame(reader)
                await self._flowing.wait()
                if self._is_trapped(side, frame):
                    link.reset()
                    return
                writer.write(frame)
                await writer.drain()
        except asyncio.IncompleteReadError:
            return  # One end has closed; `_serve` closes the other.
        except ConnectionError:
            link.reset()

    def _is_trapped(self, side: Side, frame: bytes) -> bool:
        method = _method_of(frame)
        for trap in self._traps:
            if (trap.side, trap.method) != (side, method):
                continue
            if trap.to_pass == 0:
                self._traps.remove(trap)
                trap.sprung.set()
                return True
            trap.to_pass -= 1
        return False


@asynccontextmanager
async def tcp_proxy(target_port: int) -> AsyncIterator[TcpProxy]:
    """A proxy that takes connections while the context is open; the end cuts those left."""
    proxy = TcpProxy(target_port)
    await proxy.accept()
    try:
        yield proxy
    finally:
        await proxy.close()


@dataclass(slots=True, eq=False)
class _Link:
    """Both sides of one connection, the client's first, and the task that forwards."""

    writers: list[asyncio.StreamWriter]
    task: asyncio.Task[None] | None = None

    def reset(self) -> None:
        for writer in self.writers:
            _reset(writer)
        if self.task is not None:
            self.task.cancel()

    def close(self) -> None:
        for writer in self.writers:
            writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    if not writer.transport.is_closing():
        connection: socket.socket = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        writer.transport.abort()


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    """One frame with its end octet, or the 8 bytes of a protocol header."""
    head = await reader.readexactly(_FRAME_HEAD.size)
    if head.startswith(_PROTOCOL_HEADER):
        return head + await reader.readexactly(1)
    _, _, size = _FRAME_HEAD.unpack(head)
    return head + await reader.readexactly(size + 1)


def _method_of(frame: bytes) -> tuple[int, int] | None:
    if frame[0] != _METHOD_FRAME:
        return None
    class_id, method_id = _METHOD.unpack_from(frame, _FRAME_HEAD.size)
    return class_id, method_id

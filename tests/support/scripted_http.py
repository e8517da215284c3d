"""An HTTP server that answers each connection with the bytes that a test lists."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ScriptedServer:
    """Gives the answers in turn, the last one again and again, and closes each connection.

    An empty answer is silence: the connection stays open and nothing comes.
    """

    def __init__(self, answers: tuple[bytes, ...]) -> None:
        self.url = ""
        self.requests: list[str] = []
        self.got_request = asyncio.Event()
        self._answers = answers

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.requests.append(head.decode())
            self.got_request.set()
            answer = self._answers[min(len(self.requests), len(self._answers)) - 1]
            if not answer:
                await reader.read()
            writer.write(answer)
            await writer.drain()
        except ConnectionError:
            pass  # The client is free to go.
        finally:
            writer.close()


@asynccontextmanager
async def scripted_server(
    *answers: bytes, tls: ssl.SSLContext | None = None
) -> AsyncIterator[ScriptedServer]:
    server = ScriptedServer(answers)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    scheme = "http" if tls is None else "https"
    async with listener:
        server.url = f"{scheme}://127.0.0.1:{listener.sockets[0].getsockname()[1]}/trace"
        yield server


def answer(body: bytes, status: str = "200 OK", *, length: int | None = None) -> bytes:
    """With a `Content-Length` that may be a lie."""
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\n\r\n".encode() + body


def answer_until_close(body: bytes, status: str = "200 OK") -> bytes:
    """Without a length: the body ends with the connection."""
    return f"HTTP/1.1 {status}\r\nConnection: close\r\n\r\n".encode() + body


@asynccontextmanager
async def without_tls() -> AsyncIterator[str]:
    """The https URL of a server that speaks HTTP there, and answers TLS as servers do."""

    async def complain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer(b"", "400 Bad Request"))
        writer.close()

    async with await asyncio.start_server(complain, "127.0.0.1", 0) as listener:
        yield f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}/trace"

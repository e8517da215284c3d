"""What the trace server answers: the aiohttp application behind `spica_async.traces.serve`."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from schemas.messages import TraceLoad

# Each download holds a file open; others wait for their turn.
_DOWNLOADS_AT_ONCE: Final = 32

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Offer:
    """A trace as it was when it was offered."""

    path: Path
    size_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, load: TraceLoad) -> Offer:
        """The trace that lies at the load's path.

        Raises:
            OSError: nothing can be read there.
        """
        path = Path(load.path)
        return cls(path, load.size_bytes, path.stat().st_mtime_ns)

    def is_unchanged(self) -> bool:
        """Whether the file may still be taken for the one that was offered."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return False
        return (status.st_size, status.st_mtime_ns) == (self.size_bytes, self.modified_ns)


def application(
    offers: Mapping[str, Offer], token: str, *, download_seconds: float
) -> web.Application:
    """Serves the offers by their SHA-256 at `/traces/<sha256>`, to who has the token."""
    room = asyncio.Semaphore(_DOWNLOADS_AT_ONCE)

    async def answer(request: web.Request) -> web.StreamResponse:
        if not _is_authorized(request, token):
            return web.Response(status=401, headers={"WWW-Authenticate": "Bearer"})
        offer = offers.get(request.match_info["sha256"])
        if offer is None:
            return web.Response(status=404)
        if not await asyncio.to_thread(offer.is_unchanged):
            log.warning("coordinator.trace_changed", path=str(offer.path))
            return web.Response(status=410, reason="Changed since the sweep began")
        return _Download(offer.path, room, download_seconds)

    made = web.Application()
    made.router.add_get("/traces/{sha256}", answer)
    return made


class _Download(web.FileResponse):
    """A file that waits for room, and whose sending is bounded in time."""

    def __init__(self, path: Path, room: asyncio.Semaphore, seconds: float) -> None:
        super().__init__(path)
        self._room = room
        self._seconds = seconds

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Send it all, as the base class does.

        Raises:
            ConnectionError: the peer is gone, or was too slow; aiohttp takes it for that.
        """
        try:
            async with asyncio.timeout(self._seconds), self._room:
                return await super().prepare(request)
        except TimeoutError as error:
            log.warning("coordinator.trace_download_stalled", peer=request.remote)
            raise ConnectionAbortedError from error
        except RuntimeError as error:
            # asyncio's word for a peer that went between the head and the body.
            if request.transport is None or request.transport.is_closing():
                raise ConnectionResetError from error
            raise


def _is_authorized(request: web.Request, token: str) -> bool:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(
        given.strip().encode(errors="surrogateescape"), token.encode()
    )

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
from spica_async.processes.threads import with_files

# Each download holds a file open; others wait for their turn.
_DOWNLOADS_AT_ONCE: Final = 32

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Offer:
    """A trace as it was when it was offered."""

    sha256: str
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
        return cls(load.sha256, path, load.size_bytes, path.stat().st_mtime_ns)

    def is_unchanged(self) -> bool:
        """Whether the file may still be taken for the one that was offered."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return False
        return (status.st_size, status.st_mtime_ns) == (self.size_bytes, self.modified_ns)


def application(offers: Mapping[str, Offer], *, download_seconds: float) -> web.Application:
    """Serves traces at `/traces/<sha256>`.

    Args:
        offers: by the token of those for whom each is; it may change meanwhile.
        download_seconds: the most that one download may take.
    """
    room = asyncio.Semaphore(_DOWNLOADS_AT_ONCE)

    async def answer(request: web.Request) -> web.StreamResponse:
        offer = _offer_for(request, offers)
        if offer is None:
            return web.Response(status=401, headers={"WWW-Authenticate": "Bearer"})
        if offer.sha256 != request.match_info["sha256"]:
            return web.Response(status=404)
        if not await with_files(offer.is_unchanged):
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


def _offer_for(request: web.Request, offers: Mapping[str, Offer]) -> Offer | None:
    """What the token of a request is for; all are compared, so that time tells nothing."""
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    token = given.strip().encode(errors="surrogateescape")
    found = [offer for own, offer in offers.items() if hmac.compare_digest(token, own.encode())]
    return found[0] if found and scheme.lower() == "bearer" else None

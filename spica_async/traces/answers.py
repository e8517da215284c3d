"""What the trace server answers: the application behind `spica_async.traces.serve`."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

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


def application(offers: Mapping[str, Offer], *, download_seconds: float) -> Starlette:
    """Serves traces at `/traces/<sha256>`.

    Args:
        offers: by the token that opens each; it may change meanwhile.
        download_seconds: the most that one download may take.
    """
    turns = asyncio.Semaphore(_DOWNLOADS_AT_ONCE)

    async def answer(request: Request) -> Response:
        offer = _offer_for(request, offers)
        if offer is None:
            return Response(status_code=401, headers={"WWW-Authenticate": "Bearer"})
        if offer.sha256 != request.path_params["sha256"]:
            return Response(status_code=404)
        if not await with_files(offer.is_unchanged):
            log.warning("coordinator.trace_changed", path=str(offer.path))
            return PlainTextResponse("changed since the sweep began", status_code=410)
        return _Download(offer.path, turns, download_seconds)

    return Starlette(routes=[Route("/traces/{sha256}", answer)])


class _Download(FileResponse):
    """A file that waits for its turn, and whose sending is bounded in time."""

    # Each is read by a thread, so that larger ones make a download faster.
    chunk_size = 256 * 1024

    def __init__(self, path: Path, turns: asyncio.Semaphore, seconds: float) -> None:
        super().__init__(path, media_type="application/octet-stream")
        self._turns = turns
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it all, or as much as the peer takes in time."""
        try:
            async with asyncio.timeout(self._seconds), self._turns:
                await super().__call__(scope, receive, send)
        except TimeoutError:
            # The server breaks off an answer that is not whole.
            log.warning("coordinator.trace_download_stalled", peer=scope["client"])


def _offer_for(request: Request, offers: Mapping[str, Offer]) -> Offer | None:
    """The trace that a request's token opens; all are compared, so that time gives nothing away."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    token = given.strip().encode("latin-1")
    found = [offer for own, offer in offers.items() if hmac.compare_digest(token, own.encode())]
    return found[0] if found and scheme.lower() == "bearer" else None

"""Reads the body of a request: of a known type, of bounded length, within its time."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from spica_async.documents import MOST_BYTES

JSON_TYPE: Final = "application/json"
YAML_TYPES: Final = frozenset(
    # The first is registered (RFC 9512); the others were in use before it, and still are.
    {"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml", "text/vnd.yaml"}
)
_READ_IN_VAIN: Final = 16
"""How many times the longest body is taken and dropped, for its sender to read why."""


async def read_body(request: Request, *, seconds: float) -> tuple[bytes, bool]:
    """The body of a request, and whether it is YAML.

    Args:
        request: whose body has not been read.
        seconds: how long the body may take to come.

    Raises:
        HTTPException: it is too long, does not come, or is of a type that is not known.
    """
    kind = _kind(request)
    try:
        async with asyncio.timeout(seconds):
            return await _read(request), kind in YAML_TYPES
    except TimeoutError:
        raise HTTPException(
            HTTPStatus.REQUEST_TIMEOUT,
            f"the request's body has not come within {seconds:g} s",
            {"Connection": "close"},
        ) from None


def _kind(request: Request) -> str:
    """The type of a request's body.

    Raises:
        HTTPException: it is not known, or the body is packed.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in YAML_TYPES | {JSON_TYPE}:
        known = ", ".join(sorted(YAML_TYPES | {JSON_TYPE}))
        sent = repr(kind) if kind else "nothing"
        raise HTTPException(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"Content-Type: one of {known}, not {sent}",
            {"Accept": known},
        )
    packed = request.headers.get("content-encoding", "identity").strip().lower()
    if packed != "identity":
        raise HTTPException(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"Content-Encoding: send the body as it is, not {packed!r}",
            {"Accept-Encoding": "identity"},
        )
    return kind


async def _read(request: Request) -> bytes:
    """The body, whatever length it was announced with, or with none as one that comes in chunks."""
    body = bytearray()
    length = 0
    async for chunk in request.stream():
        length += len(chunk)
        if length <= MOST_BYTES:
            body += chunk
        elif length > MOST_BYTES * _READ_IN_VAIN:
            break
    if length > MOST_BYTES:
        # Many a client reads no answer before it has sent all; for the rest of an endless one
        # nobody waits.
        raise HTTPException(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"a request has at most {MOST_BYTES:,} bytes",
            {"Connection": "close"},
        )
    return bytes(body)

"""Reads a submitted sweep, in JSON or YAML, and words its errors as `spica-async check` does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from pydantic import ValidationError
from starlette.requests import Request

from schemas.config import SmartSearchConfig
from schemas.daemon import SweepSubmission
from spica_async.config.load import describe
from spica_async.documents import check_values, decode, parse_json, parse_yaml
from spica_async.errors import InputError, printable
from spica_async.processes.threads import computed, with_files
from spica_async.service.http.problems import ProblemError
from spica_async.service.local_files import LocalFiles

JSON_TYPES: Final = frozenset({"application/json"})
YAML_TYPES: Final = frozenset(
    # The first is registered (RFC 9512); the others were in use before it, and still are.
    {"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml", "text/vnd.yaml"}
)
_LONGEST_PATH: Final = 100
_READ_IN_VAIN: Final = 16
"""How many times the longest body is taken and dropped, for its sender to read why."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A sound configuration, and how its sweep is to be run."""

    config: SmartSearchConfig
    priority: int
    use_cache: bool


async def read_submission(
    request: Request,
    *,
    priority: int | None,
    use_cache: bool | None,
    files: LocalFiles,
    body_bytes: int,
    body_seconds: float,
) -> Wish:
    """Read the body of a request as its content type says.

    Args:
        request: whose body has not been read.
        priority: what the URL says, which goes before what the body says; none: nothing.
        use_cache: likewise.
        files: which of this host may be named.
        body_bytes: the longest that is read.
        body_seconds: how long it may take to come.

    Raises:
        InputError: it is no sound submission; the message names the field or the line.
        ProblemError: it is too long, does not come, or is of a type that is not known.
    """
    kind = _kind(request)
    try:
        async with asyncio.timeout(body_seconds):
            body = await _read(request, body_bytes)
    except TimeoutError:
        raise ProblemError(
            HTTPStatus.REQUEST_TIMEOUT,
            f"the request's body has not come within {body_seconds:g} s",
            {"Connection": "close"},
        ) from None
    # The longest that is allowed takes seconds to read, in which others are to be answered.
    wish = await computed(
        _understand, body, yaml=kind in YAML_TYPES, priority=priority, use_cache=use_cache
    )
    await with_files(files.check, wish.config)
    return wish


def _kind(request: Request) -> str:
    """The type of a request's body.

    Raises:
        ProblemError: it is not known, or the body is packed.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in JSON_TYPES | YAML_TYPES:
        known = ", ".join(sorted(JSON_TYPES | YAML_TYPES))
        sent = repr(kind) if kind else "nothing"
        raise ProblemError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"Content-Type: one of {known}, not {sent}",
            {"Accept": known},
        )
    packed = request.headers.get("content-encoding", "identity").strip().lower()
    if packed != "identity":
        raise ProblemError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"Content-Encoding: send the body as it is, not {packed!r}",
            {"Accept-Encoding": "identity"},
        )
    return kind


async def _read(request: Request, most: int) -> bytes:
    """The body, whatever length it was announced with, or with none as one that comes in chunks."""
    body = bytearray()
    length = 0
    async for chunk in request.stream():
        length += len(chunk)
        if length <= most:
            body += chunk
        elif length > most * _READ_IN_VAIN:
            break
    if length > most:
        # Many a client reads no answer before it has sent all; for the rest of an endless one
        # nobody waits.
        raise ProblemError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"a request has at most {most:,} bytes",
            {"Connection": "close"},
        )
    return bytes(body)


def _understand(body: bytes, *, yaml: bool, priority: int | None, use_cache: bool | None) -> Wish:
    text = decode(body)
    submission = SweepSubmission(config={}) if yaml else _from_json(text)
    config = config_from_document(parse_yaml(text) if yaml else submission.config)
    return Wish(
        config,
        priority=submission.priority if priority is None else priority,
        use_cache=submission.use_cache if use_cache is None else use_cache,
    )


def _from_json(text: str) -> SweepSubmission:
    try:
        document = parse_json(text)
    except InputError as error:
        # Fields are named as they are where the configuration is a file.
        raise InputError(str(error).removeprefix("config.")) from None
    try:
        return SweepSubmission.model_validate(document)
    except ValidationError as error:
        raise InputError("\n".join(describe(error, SweepSubmission))) from None


def config_from_document(document: Mapping[str, Any]) -> SmartSearchConfig:
    """The configuration that a document is.

    Raises:
        InputError: it breaks a rule.
    """
    check_values(document)
    try:
        config = SmartSearchConfig.model_validate(document)
    except ValidationError as error:
        raise InputError("\n".join(describe(error))) from None
    trace = config.workload.trace_path
    if trace is not None and not trace.is_absolute():
        shown = printable(str(trace), _LONGEST_PATH)
        raise InputError(
            f"workload.trace_path: {shown} is relative, and there is no file that it could be"
            " relative to; give the absolute path on the daemon's machine"
        )
    return config

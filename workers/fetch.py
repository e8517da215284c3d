"""Copies a trace from one source into a file, and checks what comes.

Imported with the first download only, so that a worker without traces stays light.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from functools import partial
from http import HTTPStatus
from typing import IO, Final
from urllib.parse import urljoin, urlsplit

import fsspec  # type: ignore[import-untyped]  # no types are published for it
import httpx2 as httpx
import structlog
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_attempt,
    wait_exponential,
    wait_random,
)

from schemas.messages import TraceLoad, TraceSource
from spica_async.processes.threads import with_files
from spica_async.tls import HTTPS, tls_refusal
from spica_async.traces.sources import is_chained, refused, scheme_of

_ATTEMPTS: Final = 4
_LONGEST_PAUSE_SECONDS: Final = 10.0
_BLOCK_BYTES: Final = 2**20
_MOST_REDIRECTS: Final = 10
_CONNECT_SECONDS: Final = 10.0
# Without a byte for so long the server is taken to be gone.
_SILENCE_SECONDS: Final = 30.0
# Answers that say "not now"; any other that is not a success stays as it is.
_PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_HTTP: Final = frozenset({"http", "https"})
_SHOWN_DIGITS: Final = 12

log = structlog.get_logger(__name__)


class SourceError(Exception):
    """A source does not give the trace; the message names it, without what is secret in it."""

    def __init__(self, source: TraceSource, problem: str) -> None:
        super().__init__(f"{shown(source.url)}: {problem}")


class _PassingError(SourceError):
    """A moment later the source may give it."""


async def fetch(
    load: TraceLoad,
    source: TraceSource,
    draft: IO[bytes],
    *,
    schemes: Collection[str],
    pause_seconds: float,
) -> None:
    """Fill `draft`, an unbuffered file, with the trace, in several attempts if need be.

    Only `schemes` are fetched, redirects included. The pauses between attempts begin at
    `pause_seconds` and double.

    Raises:
        SourceError: the source cannot be reached, or what it has is not this trace.
        OSError: `draft` cannot be written.
    """

    def log_attempt(state: RetryCallState) -> None:
        assert state.outcome is not None  # noqa: S101 - for the type checker; an attempt has failed
        problem = str(state.outcome.exception())
        log.warning("worker.trace_retried", attempt=state.attempt_number, problem=problem)

    attempts = AsyncRetrying(
        stop=stop_after_attempt(_ATTEMPTS),
        wait=wait_exponential(pause_seconds, _LONGEST_PAUSE_SECONDS)
        + wait_random(0, pause_seconds),
        retry=retry_if_exception_type(_PassingError),
        before_sleep=log_attempt,
        reraise=True,
    )
    await attempts(_copy, load, source, draft, schemes)


def shown(url: str) -> str:
    """The URL without user, password, query and fragment, any of which may hold a secret."""
    if is_chained(url):
        return "a chain of URLs"
    try:
        parts = urlsplit(url)
    except ValueError:
        return "a source whose URL cannot be read"
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}" if parts.scheme else parts.path


async def _copy(
    load: TraceLoad, source: TraceSource, draft: IO[bytes], schemes: Collection[str]
) -> None:
    draft.seek(0)
    draft.truncate()
    digest = hashlib.sha256()
    received = 0

    def take(block: bytes) -> None:
        digest.update(block)
        rest = memoryview(block)
        while rest:  # An unbuffered file may take a part only.
            rest = rest[draft.write(rest) :]

    async with aclosing(_blocks(load, source, schemes)) as blocks:
        async for block in blocks:
            received += len(block)
            if received > load.size_bytes:
                raise SourceError(source, f"longer than the trace's {load.size_bytes:,} bytes")
            await with_files(take, block)
    if received < load.size_bytes:
        raise _PassingError(source, f"ended after {received:,} of {load.size_bytes:,} bytes")
    if digest.hexdigest() != load.sha256:
        found, wanted = digest.hexdigest()[:_SHOWN_DIGITS], load.sha256[:_SHOWN_DIGITS]
        raise SourceError(source, f"has SHA-256 {found}..., the trace has {wanted}...")


def _blocks(
    load: TraceLoad, source: TraceSource, schemes: Collection[str]
) -> AsyncGenerator[bytes, None]:
    if is_chained(source.url):
        raise SourceError(source, "only a single URL is taken, without ::")
    scheme = scheme_of(source.url)
    problem = refused(scheme, schemes)
    if problem is not None:
        raise SourceError(source, problem)
    if scheme in _HTTP:
        return _http_blocks(load, source, schemes)
    return _fsspec_blocks(source)


async def _http_blocks(
    load: TraceLoad, source: TraceSource, schemes: Collection[str]
) -> AsyncGenerator[bytes, None]:
    # The digest is of what lies in the file, so no encoding on the way.
    headers = {"Accept-Encoding": "identity"}
    if source.token is not None:
        headers["Authorization"] = f"Bearer {source.token.get_secret_value()}"
    try:
        async with (
            httpx.AsyncClient(
                timeout=httpx.Timeout(_SILENCE_SECONDS, connect=_CONNECT_SECONDS),
                # OpenSSL's own settings count, and no variable that names a proxy.
                verify=ssl.create_default_context(),
                trust_env=False,
                follow_redirects=True,
                max_redirects=_MOST_REDIRECTS,
                event_hooks={"response": [partial(_check_redirect, source, schemes)]},
            ) as client,
            # Redirected to another origin, it leaves the token behind.
            client.stream("GET", source.url, headers=headers) as response,
        ):
            _check_answer(load, source, response)
            async for block in response.aiter_bytes(_BLOCK_BYTES):
                yield block
    except (httpx.InvalidURL, httpx.UnsupportedProtocol, ValueError) as error:
        raise SourceError(source, "not a URL that can be fetched") from error
    except httpx.TooManyRedirects as error:
        raise SourceError(source, "redirects without end") from error
    except httpx.RemoteProtocolError as error:
        raise _PassingError(source, f"no answer in HTTP: {_problem(source, error)}") from error
    except httpx.HTTPError as error:
        kind = SourceError if tls_refusal(error, HTTPS) else _PassingError
        raise kind(source, _problem(source, error)) from error


async def _check_redirect(
    source: TraceSource, schemes: Collection[str], response: httpx.Response
) -> None:
    """Refuses to be led to what would not be fetched if it were named, before it is asked for."""
    if not response.has_redirect_location:
        return
    scheme = urlsplit(urljoin(str(response.url), response.headers["Location"])).scheme
    if scheme not in _HTTP:
        raise SourceError(source, f"it redirects to {scheme}://")
    problem = refused(scheme, schemes)
    if problem is not None:
        raise SourceError(source, f"it redirects, and {problem}")


def _check_answer(load: TraceLoad, source: TraceSource, response: httpx.Response) -> None:
    if response.status_code != HTTPStatus.OK:
        kind = _PassingError if response.status_code in _PASSING else SourceError
        raise kind(source, f"{response.status_code} {response.reason_phrase}")
    length = response.headers.get("Content-Length")
    if (
        length is not None
        and int(length) != load.size_bytes
        and "Content-Encoding" not in response.headers
    ):
        raise SourceError(source, f"has {int(length):,} bytes, the trace has {load.size_bytes:,}")


async def _fsspec_blocks(source: TraceSource) -> AsyncGenerator[bytes, None]:
    try:
        file = await with_files(lambda: fsspec.open(source.url, "rb").open())
        try:
            while block := await with_files(file.read, _BLOCK_BYTES):
                yield block
        finally:
            await with_files(file.close)
    except FileNotFoundError as error:
        raise SourceError(source, "not there") from error
    except ImportError as error:
        # fsspec's own words name the package, such as s3fs.
        raise SourceError(source, f"a package is not installed here: {error}") from error
    except (PermissionError, IsADirectoryError, ValueError) as error:
        raise SourceError(source, _problem(source, error)) from error
    except Exception as error:
        # Each storage has errors of its own, most of them of the network.
        kind = SourceError if tls_refusal(error, HTTPS) else _PassingError
        raise kind(source, _problem(source, error)) from error


def _problem(source: TraceSource, error: BaseException) -> str:
    """What the error says, in one line, without what is secret in the URL."""
    refusal = tls_refusal(error, HTTPS)
    if refusal is not None:
        return refusal
    text = " ".join(str(error).split()).replace(source.url, shown(source.url))
    return text or type(error).__name__

"""A client of the daemon's HTTP interface, which raises errors that users can act on."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar
from urllib.parse import quote
from uuid import uuid4

import httpx2 as httpx
from pydantic import BaseModel, PositiveInt, TypeAdapter, ValidationError
from tenacity import (
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_exponential_jitter,
)
from tenacity.wait import wait_base

from schemas.daemon import Problem, SweepDetail, SweepSubmission, SweepSummary
from schemas.lifecycle import SWEEP_EVENT, SweepEvent
from spica_async.addresses import is_loopback
from spica_async.errors import InputError, SpicaError
from spica_async.service.http import DEFAULT_URL
from spica_async.service.http.tokens import (
    TOKEN_VARIABLE,
    addresses_of,
    read_own_token,
    read_tokens,
)
from spica_async.service.port import UnreadableEvent
from spica_async.tls import HTTPS, tls_refusal

Verb = Literal["cancel", "pause", "resume"]
ModelT = TypeVar("ModelT", bound=BaseModel)

_SUMMARIES: Final[TypeAdapter[list[SweepSummary]]] = TypeAdapter(list[SweepSummary])
_NUMBER: Final[TypeAdapter[PositiveInt]] = TypeAdapter(PositiveInt)
_TIMEOUT: Final = httpx.Timeout(30.0, connect=5.0)
_SUBMIT_TIMEOUT: Final = httpx.Timeout(30.0, connect=5.0, read=300.0)
"""A daemon reads a trace to its end before it answers."""
_SUBMIT_AGAIN: Final = stop_after_attempt(6) | stop_after_delay(300.0)
"""For how long a submission without an answer is sent again: while a daemon starts, and once more
where it takes its time.
"""
_HTTP_PORT: Final = 80
_PAGE: Final = 1000
"""Sweeps in one answer."""
_STREAM_TIMEOUT: Final = httpx.Timeout(30.0, connect=5.0, read=60.0)
"""A stream says several times in a minute that it lives."""
_PAUSES: Final = wait_exponential_jitter(multiplier=0.2, max=5.0, jitter=0.2)
_ON_THE_WAY: Final = (
    httpx.ReadTimeout,
    httpx.WriteTimeout,
    httpx.ReadError,
    httpx.WriteError,
    httpx.CloseError,
    httpx.RemoteProtocolError,
)
"""What goes wrong once there is a connection."""


class DaemonSilentError(SpicaError):
    """No daemon answers, or none that can work now: worth trying again."""


class _UnansweredError(DaemonSilentError):
    """A daemon was reached and has not answered, though it may have done what it was asked."""


class DaemonClient:
    """One daemon, for a `with` statement.

    Every method raises a `DaemonSilentError` where it does not answer, an `InputError` where it
    refuses what it was asked, and a `SpicaError` where its answer is none of a daemon's.

    Args:
        url: the address of the daemon, with http:// or https://.
        token: opens it; none: that which a daemon of this user's has left in a file, if any.
        submit_timeout: how long each part of a submission may take.
        pauses: between two attempts at what was not answered.

    Attributes:
        url: without a slash at its end.
        pauses: see above.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        submit_timeout: httpx.Timeout = _SUBMIT_TIMEOUT,
        pauses: wait_base = _PAUSES,
    ) -> None:
        self.url = url.rstrip("/")
        self._submit_timeout = submit_timeout
        self.pauses = pauses
        self._http = httpx.Client(
            headers={} if token is None else {"Authorization": f"Bearer {token}"},
            auth=_OwnToken() if token is None else None,
            timeout=_TIMEOUT,
            # A proxy does not know this machine by these names.
            trust_env=not is_loopback(httpx.URL(url).host),
            # What the environment says of certificates holds for it all the same.
            verify=httpx.create_ssl_context(),
        )

    @classmethod
    def of_options(cls, url: str, token_file: Path | None) -> Self:
        """The client of the daemon that a command was given.

        Args:
            url: of `--daemon`, or of the variable `SPICA_DAEMON`.
            token_file: has the token in its first line; None: see `read_tokens`.

        Raises:
            InputError: naming the option or the variable to correct.
        """
        url = url.strip()
        try:
            parts = httpx.URL(url)
        except httpx.InvalidURL:
            raise InputError(f"--daemon: not a URL, such as {DEFAULT_URL}") from None
        if parts.scheme not in ("http", "https") or not parts.host:
            raise InputError(f"--daemon: a URL with http:// or https://, such as {DEFAULT_URL}")
        if parts.userinfo or parts.query or parts.fragment:
            # Not quoted: there may be a password in it.
            raise InputError(
                f"--daemon: host, port and path only; --token-file or {TOKEN_VARIABLE} has a token"
            )
        return cls(url, next(iter(read_tokens(token_file)), None))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def submit(self, submission: SweepSubmission) -> SweepSummary:
        """Hand over a sweep, once, also where it is sent again since there was no answer."""

        def send() -> SweepSummary:
            return self._model(
                SweepSummary,
                "POST",
                "/v1/sweeps",
                content=content,
                headers=headers,
                timeout=self._submit_timeout,
            )

        content = submission.model_dump_json()
        headers = {"Content-Type": "application/json", "Idempotency-Key": str(uuid4())}
        with suppress(_UnansweredError):
            return send()
        # It may be starting again, so that nobody there is worth another try, too.
        again = Retrying(
            retry=retry_if_exception_type(DaemonSilentError),
            wait=self.pauses,
            stop=_SUBMIT_AGAIN,
            reraise=True,
        )
        try:
            return again(send)
        except DaemonSilentError as error:
            raise DaemonSilentError(
                f"{error}; it may have taken the sweep in: see spica-async list"
            ) from None

    def sweeps(self, state: str | None = None, *, most: int) -> list[SweepSummary]:
        """The latest sweeps, or of those in one state; the latest submitted first.

        Args:
            state: the state of the sweeps; None: any.
            most: the most sweeps to return.
        """
        found: list[SweepSummary] = []
        params: dict[str, str | int] = {} if state is None else {"state": state}
        while True:
            params["limit"] = min(_PAGE, most - len(found))
            answer = self._ask("GET", "/v1/sweeps", params=params)
            with self._understanding():
                found += _SUMMARIES.validate_json(answer.content)
            link = answer.links.get("next")
            if link is None or len(found) >= most:
                return found
            params = dict(httpx.URL(link["url"]).params)

    def sweep(self, sweep_id: str) -> SweepDetail:
        """One sweep."""
        return self._model(SweepDetail, "GET", _path(sweep_id))

    def order(self, verb: Verb, sweep_id: str) -> SweepSummary:
        """Cancel, pause or resume a sweep."""
        return self._model(SweepSummary, "POST", f"{_path(sweep_id)}/{verb}")

    def remove(self, sweep_id: str) -> None:
        """Remove a sweep that has ended or was stopped from the journal."""
        self._ask("DELETE", _path(sweep_id))

    def events(
        self,
        sweep_id: str,
        *,
        after: int = 0,
        is_enough: Callable[[], bool] = lambda: False,
    ) -> Iterator[SweepEvent | UnreadableEvent]:
        """What happens to a sweep from an event on, over one connection, for as long as it lasts.

        Some events may be such that the daemon, or this version, cannot read them.

        Args:
            sweep_id: the name of the sweep.
            after: number of the last event that is known.
            is_enough: called whenever something has come, if only a sign of life; ends it.
        """
        url = f"{self.url}{_path(sweep_id)}/events"
        headers = {"Last-Event-ID": str(after)} if after else {}
        with (
            self._reaching(),
            self._http.stream("GET", url, headers=headers, timeout=_STREAM_TIMEOUT) as answer,
        ):
            if not answer.is_success:
                answer.read()
                self._refuse(answer)
            if answer.status_code == HTTPStatus.NO_CONTENT:
                return
            assert isinstance(answer.stream, httpx.SyncByteStream)  # noqa: S101  # of this client
            # Signs of life are comments, which an EventSource keeps to itself.
            answer.stream = _Heard(answer.stream, is_enough)
            for event in httpx.EventSource(answer, max_event_size=None):
                try:
                    yield SWEEP_EVENT.validate_json(event.data)
                except ValidationError:
                    with self._understanding():
                        number = _NUMBER.validate_python(event.id)
                    yield UnreadableEvent(sweep_id, number)

    def _model(self, model: type[ModelT], method: str, path: str, **request: Any) -> ModelT:
        answer = self._ask(method, path, **request)
        with self._understanding():
            return model.model_validate_json(answer.content)

    def _ask(self, method: str, path: str, **request: Any) -> httpx.Response:
        with self._reaching():
            answer = self._http.request(method, f"{self.url}{path}", **request)
        if not answer.is_success:
            self._refuse(answer)
        return answer

    def _refuse(self, answer: httpx.Response) -> None:
        """Raise the error of an answer without success."""
        try:
            detail = Problem.model_validate_json(answer.content).detail
        except ValidationError:
            problem = f"{self.url}: answered {answer.status_code}, not as a daemon does"
            # A proxy may say so, or the daemon's own server where it has too many connections.
            is_busy = answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE
            raise (DaemonSilentError if is_busy else SpicaError)(problem) from None
        match answer.status_code:
            case HTTPStatus.UNAUTHORIZED:
                raise InputError(
                    f"{self.url}: {detail}; --token-file or {TOKEN_VARIABLE} has it,"
                    " or you are the daemon's own user on its host"
                )
            case HTTPStatus.SERVICE_UNAVAILABLE:
                raise DaemonSilentError(f"{self.url}: {detail}")
            case status if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise SpicaError(f"{self.url}: {detail}")
        raise InputError(detail)

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except httpx.HTTPError as error:
            refusal = tls_refusal(error, HTTPS)
            if refusal is not None:
                raise SpicaError(f"{self.url}: {refusal}") from None
            problem = "no daemon answers there"
            if isinstance(error, httpx.TimeoutException):
                problem += " in time"
            else:
                problem += f": {str(error).lower() or type(error).__name__}"
            kind = _UnansweredError if isinstance(error, _ON_THE_WAY) else DaemonSilentError
            raise kind(f"{self.url}: {problem}") from None

    @contextmanager
    def _understanding(self) -> Iterator[None]:
        try:
            yield
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"]))
            raise SpicaError(
                f"{self.url}: its answer is not understood ({where or 'not JSON'}); is it a"
                " daemon of another version?"
            ) from None


class _OwnToken(httpx.Auth):
    """Shows a daemon of this user's on this machine the token that it has left for us.

    It is read for each request, since a daemon that starts again has another.
    """

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Find the token, and ask again where it has changed since."""
        shown = self._show(request)
        answer = yield request
        if answer.status_code == HTTPStatus.UNAUTHORIZED and self._show(request) != shown:
            yield request

    def _show(self, request: httpx.Request) -> str | None:
        host, port = request.url.host, request.url.port or _HTTP_PORT
        if not is_loopback(host) or request.url.scheme != "http":
            return None
        for address in addresses_of(host, port):
            token = read_own_token(address, port)
            if token is not None:
                # Somebody else may listen at another address of the same name.
                request.url = request.url.copy_with(host=address)
                request.headers["Authorization"] = f"Bearer {token}"
                return token
        return None


class _Heard(httpx.SyncByteStream):
    """What comes of an answer, until it is enough."""

    def __init__(self, parts: httpx.SyncByteStream, is_enough: Callable[[], bool]) -> None:
        self._parts = parts
        self._is_enough = is_enough

    def __iter__(self) -> Iterator[bytes]:
        for part in self._parts:
            yield part
            # Only when all events of the part were taken is the next one asked for.
            if self._is_enough():
                return

    def close(self) -> None:
        """See `SyncByteStream.close`."""
        self._parts.close()


def _path(sweep_id: str) -> str:
    if "/" in sweep_id or sweep_id in ("", ".", ".."):
        # It would lead to something else than a sweep.
        raise InputError(f"there is no sweep {sweep_id!r}")
    return f"/v1/sweeps/{quote(sweep_id, safe='')}"

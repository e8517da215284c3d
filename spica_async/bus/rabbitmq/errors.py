"""Translates the errors of the client library into ours."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from traceback import walk_tb
from typing import Final

from aiormq import exceptions as amqp

from spica_async.bus.port import AccessRefusedError, BusUnavailableError
from spica_async.tls import TlsOptions, explained, tls_error, tls_refusal

TLS_OPTIONS: Final = TlsOptions("--ca", "amqp:// in the URL", "--cert and --key")


class TransientError(Exception):
    """It did not go through, but may well do so on another channel or connection, or later."""


class NotFoundError(Exception):
    """The broker knows no queue or exchange of that name."""


class OtherArgumentsError(Exception):
    """A queue or exchange of that name exists with other arguments, or belongs to somebody."""


class ReturnedError(Exception):
    """The message came back: it was published to a queue that does not exist."""


# The first class that fits counts. OSError has ConnectionError and asyncio's TimeoutError below it.
_OURS: Final[tuple[tuple[type[BaseException], type[Exception]], ...]] = (
    (amqp.ProbableAuthenticationError, AccessRefusedError),
    (amqp.AuthenticationError, AccessRefusedError),
    (amqp.ConnectionNotAllowed, AccessRefusedError),
    (amqp.ChannelAccessRefused, AccessRefusedError),
    (amqp.ChannelNotFoundEntity, NotFoundError),
    (amqp.ChannelPreconditionFailed, OtherArgumentsError),
    (amqp.ChannelLockedResource, OtherArgumentsError),
    (amqp.PublishError, ReturnedError),
    (amqp.AMQPError, TransientError),
    (OSError, TransientError),
)

_LIBRARY: Final = frozenset({"aio_pika", "aiormq", "asyncio"})


_NOT_ALLOWED: Final = 530


@contextmanager
def translated() -> Iterator[None]:
    """Turn the errors of everything that is done on a connection into ours.

    Raises:
        TransientError: also for what the library leaves unexplained. An error that is none of its
            own is a bug, which no other attempt mends, and stays as it is.
        NotFoundError: 404.
        OtherArgumentsError: 405 and 406.
        ReturnedError: a mandatory message was not routed.
        AccessRefusedError: 403, and a connection that was refused for good.
    """
    task = asyncio.current_task()
    cancelled_before = 0 if task is None else task.cancelling()

    def is_cancelled() -> bool:
        return task is not None and task.cancelling() > cancelled_before

    try:
        yield
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        # Nobody cancelled this task: the library passes on how its own tasks were ended.
        raise TransientError("the channel was closed") from error
    except Exception as error:
        if is_cancelled():
            # The library lost it on the way: see `in_background`.
            raise asyncio.CancelledError from error
        ours = _ours(error)
        if ours is None:
            raise
        raise ours(explanation(error)) from error
    else:
        if is_cancelled():
            # As above.
            raise asyncio.CancelledError


@asynccontextmanager
async def patience(seconds: float, doing: str) -> AsyncIterator[None]:
    """Wait for the broker for so long, whatever is done in the context.

    Raises:
        BusUnavailableError: it took longer.
    """
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise BusUnavailableError(
            f"{doing}: the broker did not answer for {seconds:g} s"
        ) from error


def _ours(error: Exception) -> type[Exception] | None:
    if tls_refusal(error, TLS_OPTIONS) is not None:
        return AccessRefusedError
    if isinstance(error, amqp.ConnectionClosed) and error.args[:1] == (_NOT_ALLOWED,):
        # While it connects, the library gives the code and not its class: no such virtual host.
        return AccessRefusedError
    if _is_of_closing(error):
        return TransientError
    return next((ours for theirs, ours in _OURS if isinstance(error, theirs)), None)


def _is_of_closing(error: Exception) -> bool:
    """Whether the library says no more than that what it was to use is closed."""
    if type(error) is Exception:
        # What was pending when a channel was closed in good order: it throws the bare class.
        return not error.args
    # So is a connection while it is used; RecursionError and others below RuntimeError are not.
    return type(error) in {RuntimeError, amqp.ChannelInvalidStateError} and _is_raised_by(
        _LIBRARY, error
    )


def _is_raised_by(packages: frozenset[str], error: Exception) -> bool:
    frames = list(walk_tb(error.__traceback__))
    module = frames[-1][0].f_globals.get("__name__", "") if frames else ""
    return module.partition(".")[0] in packages


def explanation(error: BaseException) -> str:
    """One line for a person; the library keeps what the broker said in the arguments."""
    tls = tls_error(error)
    if tls is not None:
        # The library passes its number on as if it were one of the system's.
        return tls_refusal(error, TLS_OPTIONS) or explained(tls)
    by_broker = isinstance(error, amqp.ConnectionClosed)  # An OSError, with the broker's own codes.
    if isinstance(error, OSError) and isinstance(error.errno, int) and not by_broker:
        return os.strerror(error.errno).lower()
    said = [str(argument) for argument in error.args if argument not in (None, "")]
    if isinstance(error, TimeoutError) and not said:
        return "no answer"
    return " ".join(" ".join(said).split()) or type(error).__name__

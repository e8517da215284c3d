"""What the client library raises: what may pass, and what is a bug and fails at once."""

from __future__ import annotations

import asyncio
import ssl

import pytest
from aiormq import exceptions as amqp
from aiormq.base import FutureStore

from spica_async.bus.port import AccessRefusedError
from spica_async.bus.rabbitmq.errors import TransientError, explanation, translated


def closing(channel: str) -> None:
    """Raises as the library does of what was closed."""
    code = compile("raise RuntimeError(f'{channel} closed')", "connection.py", "exec")
    exec(code, {"__name__": "aiormq.connection", "channel": channel})


async def raise_translated(error: Exception) -> None:
    with translated():
        raise error


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("dictionary changed size during iteration"),
        RecursionError("maximum recursion depth exceeded"),
        NotImplementedError("publish"),
        Exception("somebody was lazy"),
        KeyError("queue"),
        TypeError("int is no str"),
    ],
)
async def test_a_bug_stays_one(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        await raise_translated(error)
    assert raised.value is error


@pytest.mark.parametrize(
    "error",
    [
        amqp.AMQPConnectionError("reset"),
        amqp.ChannelClosed(0, "closed"),
        ConnectionResetError("by peer"),
        TimeoutError(),
    ],
)
async def test_what_may_pass(error: Exception) -> None:
    with pytest.raises(TransientError):
        await raise_translated(error)


async def test_what_was_closed_while_it_was_used() -> None:
    with pytest.raises(TransientError, match="channel 7 closed"), translated():
        closing("channel 7")


async def test_what_was_pending_when_a_channel_was_closed() -> None:
    store = FutureStore(asyncio.get_running_loop())
    pending = store.create_future()
    await store.reject_all(None)
    with pytest.raises(TransientError), translated():
        await pending


def wrapped(error: ssl.SSLError) -> amqp.AMQPConnectionError:
    """As the library passes on an error of TLS: with its number as if it were the system's."""
    outer = amqp.AMQPConnectionError(*error.args)
    outer.__cause__ = error
    return outer


def untrusted() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] ...")
    error.verify_code, error.verify_message = 20, "unable to get local issuer certificate"
    return error


async def test_an_untrusted_certificate_is_refused() -> None:
    with pytest.raises(AccessRefusedError, match=r"certificate is not trusted: .*--ca"):
        await raise_translated(wrapped(untrusted()))


async def test_the_number_of_an_error_of_tls_is_not_taken_for_the_systems() -> None:
    said = explanation(wrapped(ssl.SSLError(1, "[SSL: INTERNAL_ERROR] internal error")))
    assert said.startswith("TLS: ")
    assert "not permitted" not in said

"""From a broadcast to an order."""

from __future__ import annotations

import pytest

from schemas.control import (
    ROLL_CALL,
    SWEEP_CANCELLED,
    RollCall,
    RollCalled,
    SweepCancellation,
    SweepCancelled,
)
from schemas.envelope import MAX_MESSAGE_BYTES
from spica_async.bus.port import Message
from workers.control import MalformedOrderError, UnknownOrderError, parse_order
from workers.requests import MAX_ID_CHARACTERS


def cancelled(sweep_id: str) -> bytes:
    data = SweepCancellation(sweep_id=sweep_id, grace_seconds=3)
    return SweepCancelled(source="test", data=data).model_dump_json().encode()


def test_an_order_is_read() -> None:
    call = RollCall(coordinator="c")
    body = RollCalled(source="test", data=call).model_dump_json().encode()
    assert parse_order(Message(body, "m", ROLL_CALL)) == call
    longest = "s" * MAX_ID_CHARACTERS
    assert parse_order(Message(cancelled(longest), "m", SWEEP_CANCELLED)) == SweepCancellation(
        sweep_id=longest, grace_seconds=3
    )


@pytest.mark.parametrize("type_", ["", "spica.worker.roll_call.v2"])
def test_other_types_are_unknown(type_: str) -> None:
    with pytest.raises(UnknownOrderError):
        parse_order(Message(cancelled("s"), "m", type_))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "EOF"),
        (b"[]", "object"),
        (cancelled("s").replace(b"3.0", b"-1"), "data.grace_seconds"),
        (cancelled("s" * (MAX_ID_CHARACTERS + 1)), "sweep_id"),
        (cancelled("s") + b" " * MAX_MESSAGE_BYTES, "bytes"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(body: bytes, why: str) -> None:
    with pytest.raises(MalformedOrderError, match=why) as caught:
        parse_order(Message(body, "m", SWEEP_CANCELLED))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400

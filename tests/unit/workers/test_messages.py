"""Which messages are evaluation requests that can be answered, and which are orders."""

from __future__ import annotations

import json
from datetime import UTC, datetime

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
from schemas.messages import (
    EVALUATION_COMPLETED,
    EVALUATION_REQUESTED,
    EvaluationRequest,
    EvaluationRequested,
    SyntheticLoad,
)
from spica_async.bus.port import Message
from workers.messages import (
    MAX_ID_CHARACTERS,
    AddressedRequest,
    Malformation,
    MalformedMessageError,
    parse_order,
    parse_request,
)

REQUEST = EvaluationRequest(
    evaluation_id="e1",
    sweep_id="sweep",
    sample={"tp": 2},
    load=SyntheticLoad(isl=1, osl=1, requests=1, concurrency=1),
)
SENT_AT = datetime(2026, 11, 29, 12, 30, 15, tzinfo=UTC)
BODY = EvaluationRequested(source="test", time=SENT_AT, data=REQUEST).model_dump_json().encode()


def message(
    body: bytes = BODY, type_: str = EVALUATION_REQUESTED, reply_to: str | None = "results"
) -> Message:
    return Message(body, "m1", type_, reply_to)


def test_a_request_and_where_its_result_goes() -> None:
    assert parse_request(message()) == AddressedRequest(REQUEST, "results", SENT_AT)


def test_a_time_without_a_zone_is_utc() -> None:
    body = BODY.replace(b"12:30:15Z", b"12:30:15")
    assert body != BODY
    assert parse_request(message(body)).sent_at == SENT_AT


def test_ids_have_a_longest() -> None:
    longest = REQUEST.model_copy(update={"evaluation_id": "e" * MAX_ID_CHARACTERS})
    envelope = EvaluationRequested(source="test", data=longest)
    body = envelope.model_dump_json().encode()
    assert parse_request(message(body)).request == longest
    for longer in (
        body.replace(b'"eee', b'"eeee'),
        body.replace(b'"sweep"', b'"%b"' % (b"s" * 300)),
    ):
        with pytest.raises(MalformedMessageError, match="an id has more than"):
            parse_request(message(longer))


def test_what_is_wrong_is_said_in_one_line() -> None:
    many = BODY.replace(b'"sample":{"tp":2}', b'"sample":[1],"sla":7')
    with pytest.raises(MalformedMessageError) as caught:
        parse_request(message(many))
    assert str(caught.value).startswith("data.sample: ")
    assert "\n" not in str(caught.value)


def test_unknown_fields_are_for_newer_workers() -> None:
    document = json.loads(BODY)
    document["data"]["priority"] = 7
    assert parse_request(message(json.dumps(document).encode())).request == REQUEST


@pytest.mark.parametrize(
    ("malformed", "kind"),
    [
        (message(type_="spica.evaluation.requested.v2"), Malformation.UNKNOWN_TYPE),
        (message(reply_to=None), Malformation.NO_REPLY_TO),
        (message(BODY + b" " * MAX_MESSAGE_BYTES), Malformation.INVALID_BODY),
        (message(b""), Malformation.INVALID_BODY),
        (message(b"\xff"), Malformation.INVALID_BODY),
        (message(b"[]"), Malformation.INVALID_BODY),
        (message(REQUEST.model_dump_json().encode()), Malformation.INVALID_BODY),
        (
            message(BODY.replace(EVALUATION_REQUESTED.encode(), EVALUATION_COMPLETED.encode())),
            Malformation.INVALID_BODY,
        ),
        (message(BODY.replace(b'"isl":1', b'"isl":0')), Malformation.INVALID_BODY),
    ],
)
def test_what_is_wrong_has_a_kind(malformed: Message, kind: Malformation) -> None:
    with pytest.raises(MalformedMessageError) as caught:
        parse_request(malformed)
    assert caught.value.kind is kind


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
def test_orders_of_other_types_are_unknown(type_: str) -> None:
    with pytest.raises(MalformedMessageError) as caught:
        parse_order(Message(cancelled("s"), "m", type_))
    assert caught.value.kind is Malformation.UNKNOWN_TYPE


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "EOF"),
        (b"[]", "object"),
        (cancelled("s").replace(b'_seconds":3.0', b'_seconds":-1'), "data.grace_seconds"),
        (cancelled("s" * (MAX_ID_CHARACTERS + 1)), "an id has more"),
        (cancelled("s") + b" " * MAX_MESSAGE_BYTES, "bytes"),
    ],
)
def test_what_is_wrong_with_an_order_is_one_line(body: bytes, why: str) -> None:
    with pytest.raises(MalformedMessageError, match=why) as caught:
        parse_order(Message(body, "m", SWEEP_CANCELLED))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400

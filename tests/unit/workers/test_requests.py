"""Which messages are evaluation requests that can be answered."""

from __future__ import annotations

import json

import pytest

from schemas.messages import (
    EVALUATION_COMPLETED,
    EVALUATION_REQUESTED,
    EvaluationRequest,
    EvaluationRequested,
    SyntheticLoad,
)
from spica_async.bus.port import Message
from workers.requests import (
    AddressedRequest,
    Malformation,
    MalformedRequestError,
    parse_request,
)

REQUEST = EvaluationRequest(
    evaluation_id="e1",
    sweep_id="sweep",
    sample={"tp": 2},
    load=SyntheticLoad(isl=1, osl=1, requests=1, concurrency=1),
)
BODY = EvaluationRequested(source="test", data=REQUEST).model_dump_json().encode()


def message(
    body: bytes = BODY, type_: str = EVALUATION_REQUESTED, reply_to: str | None = "results"
) -> Message:
    return Message(body, "m1", type_, reply_to)


def test_a_request_and_where_its_result_goes() -> None:
    assert parse_request(message()) == AddressedRequest(REQUEST, "results")


def test_unknown_fields_are_for_newer_workers() -> None:
    document = json.loads(BODY)
    document["data"]["priority"] = 7
    assert parse_request(message(json.dumps(document).encode())).request == REQUEST


@pytest.mark.parametrize(
    ("malformed", "kind"),
    [
        (message(type_="spica.evaluation.requested.v2"), Malformation.UNKNOWN_TYPE),
        (message(reply_to=None), Malformation.NO_REPLY_TO),
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
    with pytest.raises(MalformedRequestError) as caught:
        parse_request(malformed)
    assert caught.value.kind is kind

"""The process inside a slot: imports an evaluator once and runs one evaluation after the other.

Started by its slot as `python -m workers.child EVALUATOR [WARM_UP]`. It sends frames of JSON: first
a `ChildGreeting` once the evaluator is imported (or what went wrong), then two for each
`EvaluationRequest` that came in: a greeting again once all is set up for it, which is when its
time begins, and a `Measurement`.
"""

from __future__ import annotations

import contextlib
import pkgutil
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from pydantic import BaseModel

from schemas.messages import EvaluationRequest, Measurement
from spica_async.processes.parent import Parent

Evaluator = Callable[[EvaluationRequest], Measurement]
SetUp = Callable[[EvaluationRequest], object]

MAX_REPLY_BYTES = 512 * 1024
"""Leaves room for the envelope around a measurement."""
_MAX_DETAIL_CHARACTERS = 2000


class ChildGreeting(BaseModel):
    """The first line out of a child, and the one before each measurement.

    No error means that it is ready for what comes next.
    """

    error: str | None = None


def main(evaluator_path: str, warm_up_path: str | None = None) -> NoReturn:
    """Serve requests until the parent ends this process."""
    parent = Parent()
    greeting = ChildGreeting()
    set_up: SetUp | None = None
    try:
        evaluate: Evaluator = pkgutil.resolve_name(evaluator_path)
        if warm_up_path is not None:
            set_up = pkgutil.resolve_name(warm_up_path)()
    except Exception as error:  # noqa: BLE001 - whatever a module does at import; it is reported
        traceback.print_exc()
        greeting = ChildGreeting(error=_one_line(error))
    parent.send(greeting.model_dump_json().encode())
    # After a failed start no request comes: this waits for the parent to end it.
    while True:
        request = EvaluationRequest.model_validate_json(parent.receive().payload)
        if set_up is not None:
            # The evaluation meets the same trouble, and can answer with it.
            with contextlib.suppress(BaseException):
                set_up(request)
        parent.send(ChildGreeting().model_dump_json().encode())
        parent.send(measure(evaluate, request).encode())


def measure(evaluate: Callable[[EvaluationRequest], object], request: EvaluationRequest) -> str:
    """Run one evaluation; whatever the evaluator does wrong becomes a failed measurement.

    Returns:
        A `Measurement` as JSON, at most `MAX_REPLY_BYTES` long.
    """
    try:
        result = evaluate(request)
        if not isinstance(result, Measurement):
            return _failed(f"the evaluator returned {type(result).__name__}, not a Measurement")
        reply = result.model_dump_json()
        size = len(reply.encode())
    except BaseException as error:  # noqa: BLE001 - a panic in Rust is no Exception either
        traceback.print_exc()
        return _failed(_one_line(error))
    if size > MAX_REPLY_BYTES:
        return _failed(f"the measurement has {size} bytes, more than {MAX_REPLY_BYTES}")
    return reply


def _failed(detail: str) -> str:
    return Measurement.failed("replay_error", detail).model_dump_json()


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:_MAX_DETAIL_CHARACTERS]


if __name__ == "__main__":
    main(*sys.argv[1:])

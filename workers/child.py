"""The process inside a slot: imports an evaluator once and runs one evaluation after the other.

Started by `workers.process` as `python -m workers.child FD EVALUATOR [WARM_UP]`. Both ways over the
socket FD goes one JSON document a line: out first an empty error once the evaluator is imported
(or what went wrong), then two for each `EvaluationRequest` that came in: an empty error again once
all is set up for it, which is when its time begins, and a `Measurement`.
"""

from __future__ import annotations

import contextlib
import os
import pkgutil
import queue
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import NoReturn

from pydantic import BaseModel

from schemas.messages import EvaluationRequest, Measurement

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


def main(channel_fd: int, evaluator_path: str, warm_up_path: str | None = None) -> NoReturn:
    """Serve requests until the other end of the channel is closed, which ends the process."""
    # Ctrl-C is for the supervisor, who decides what becomes of a running evaluation.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What the evaluator starts must not hold the channel open.
    os.set_inheritable(channel_fd, False)  # noqa: FBT003 - positional in the standard library
    channel = socket.socket(fileno=channel_fd)
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(channel, requests), daemon=True).start()
    greeting = ChildGreeting()
    set_up: SetUp | None = None
    try:
        evaluate: Evaluator = pkgutil.resolve_name(evaluator_path)
        if warm_up_path is not None:
            set_up = pkgutil.resolve_name(warm_up_path)()
    except Exception as error:  # noqa: BLE001 - whatever a module does at import; it is reported
        traceback.print_exc()
        greeting = ChildGreeting(error=_one_line(error))
    _send(channel, greeting.model_dump_json())
    # After a failed start nobody sends requests: this waits for the channel's end.
    while True:
        request = EvaluationRequest.model_validate_json(requests.get())
        if set_up is not None:
            # The evaluation meets the same trouble, and can answer with it.
            with contextlib.suppress(BaseException):
                set_up(request)
        _send(channel, ChildGreeting().model_dump_json())
        _send(channel, measure(evaluate, request))


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
    return Measurement(outcome="failed", cause="replay_error", detail=detail).model_dump_json()


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:_MAX_DETAIL_CHARACTERS]


def _receive(channel: socket.socket, requests: queue.SimpleQueue[bytes]) -> None:
    """Hand requests on; a thread of its own, since the supervisor may go during an evaluation."""
    with channel.makefile("rb") as lines:
        try:
            for line in lines:
                requests.put(line)
        except ConnectionError:
            pass  # Another way to learn that the supervisor is gone.
        finally:
            # Takes along what the evaluator started.
            os.killpg(os.getpgrp(), signal.SIGKILL)


def _send(channel: socket.socket, document: str) -> None:
    channel.sendall(document.encode() + b"\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])

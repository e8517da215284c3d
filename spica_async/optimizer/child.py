"""The optimizer process: reads asks from stdin, lets a designer answer, writes to stdout.

Run as `python -m spica_async.optimizer.child MODULE:NAME`, which names a `DesignerFactory`. It
ends as soon as its stdin does, even in the middle of an ask, so it never outlives its parent.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from dataclasses import asdict, dataclass
from typing import BinaryIO, cast

import psutil

from spica_async.optimizer.wire import (
    AskRequest,
    Costs,
    Designer,
    DesignerFactory,
    PrepareRequest,
    decode_opening,
    decode_request,
)
from spica_async.processes.child import HEADER_BYTES, frame, payload_length, take_standard_streams


@dataclass(frozen=True, slots=True)
class _Frame:
    payload: bytes
    arrived: float


_Frames = queue.SimpleQueue[_Frame]


def main(factory_path: str) -> int:
    """Serves asks until stdin ends or one fails; returns the exit code for a failure."""
    # Ctrl-C in a terminal is for the coordinator, which then ends this process itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, answers = take_standard_streams()
    frames: _Frames = queue.SimpleQueue()
    threading.Thread(target=_read_frames, args=(requests, frames), daemon=True).start()
    try:
        opening = decode_opening(frames.get().payload)
        designer = _find(factory_path)(opening.study)
        start_seconds = time.monotonic() - opening.started
        while True:
            received = frames.get()
            request = decode_request(received.payload)
            if isinstance(request, PrepareRequest):
                _prepare(designer, request.answered, frames)
                if frames.empty():
                    _answer(answers, {"prepared": True})
                continue
            assignments = designer.suggest(request)
            costs = Costs(
                start_seconds=start_seconds,
                compile_seconds=designer.clock.seconds(),
                compile_wait_seconds=designer.clock.seconds_since(received.arrived),
                memory_mb=psutil.Process().memory_info().rss / 2**20,
            )
            _answer(answers, {"assignments": assignments, "costs": asdict(costs)})
            designer.clock.settle()
            _prepare(designer, request, frames)
    except Exception as error:  # noqa: BLE001 - The parent learns of every failure and replaces us.
        fault = "".join(traceback.format_exception_only(error)).strip()
        _answer(answers, {"fault": fault, "detail": traceback.format_exc()})
        return 1


def _prepare(designer: Designer, request: AskRequest, frames: _Frames) -> None:
    if frames.empty():
        designer.prepare(request, interrupted=lambda: not frames.empty())


def _read_frames(requests: BinaryIO, frames: _Frames) -> None:
    while len(header := requests.read(HEADER_BYTES)) == HEADER_BYTES:
        payload = requests.read(payload_length(header))
        frames.put(_Frame(payload, time.monotonic()))
    os._exit(0)  # The parent is gone, and the main thread may be deep in a compilation.


def _find(factory_path: str) -> DesignerFactory:
    module, _, name = factory_path.partition(":")
    return cast("DesignerFactory", getattr(importlib.import_module(module), name))


def _answer(answers: BinaryIO, answer: dict[str, object]) -> None:
    answers.write(frame(json.dumps(answer).encode()))
    answers.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

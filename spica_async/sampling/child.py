"""The optimizer process: reads asks from stdin, lets a designer answer, writes to stdout.

Run as `python -m spica_async.sampling.child MODULE:NAME`, which names a `DesignerFactory`. It
ends as soon as its stdin does, even in the middle of an ask, so it never outlives its parent.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from typing import BinaryIO, cast

from spica_async.childproc import HEADER_BYTES, frame, payload_length, take_standard_streams
from spica_async.sampling.wire import DesignerFactory


def main(factory_path: str) -> int:
    """Serves asks until stdin ends or one fails; returns the exit code for a failure."""
    # Ctrl-C in a terminal is for the coordinator, which then ends this process itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, answers = take_standard_streams()
    payloads: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_frames, args=(requests, payloads), daemon=True).start()
    try:
        # The pickles come from the parent, which could run any code here anyway.
        study = pickle.loads(payloads.get())  # noqa: S301
        designer = _find(factory_path)(study)
        while True:
            request = pickle.loads(payloads.get())  # noqa: S301
            _answer(answers, {"assignments": designer.suggest(request)})
    except Exception as error:  # noqa: BLE001 - The parent learns of every failure and replaces us.
        fault = "".join(traceback.format_exception_only(error)).strip()
        _answer(answers, {"fault": fault, "detail": traceback.format_exc()})
        return 1


def _read_frames(requests: BinaryIO, payloads: queue.SimpleQueue[bytes]) -> None:
    while len(header := requests.read(HEADER_BYTES)) == HEADER_BYTES:
        payloads.put(requests.read(payload_length(header)))
    os._exit(0)  # The parent is gone, and the main thread may be deep in a compilation.


def _find(factory_path: str) -> DesignerFactory:
    module, _, name = factory_path.partition(":")
    return cast("DesignerFactory", getattr(importlib.import_module(module), name))


def _answer(answers: BinaryIO, answer: dict[str, object]) -> None:
    answers.write(frame(json.dumps(answer).encode()))
    answers.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

"""The optimizer process: receives asks and lets a designer answer.

Run as `python -m spica_async.optimizer.child MODULE:NAME`, which names a `DesignerFactory`. It
ends as soon as its parent does, even in the middle of an ask.
"""

from __future__ import annotations

import json
import pkgutil
import sys
import time
import traceback
from dataclasses import asdict
from typing import NoReturn

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
from spica_async.processes.parent import Parent


def main(factory_path: str) -> NoReturn:
    """Serves asks until the parent ends this process; after a failure it answers no more."""
    parent = Parent()
    try:
        _serve(parent, factory_path)
    except Exception as error:  # noqa: BLE001 - The parent learns of every failure and replaces us.
        fault = "".join(traceback.format_exception_only(error)).strip()
        _answer(parent, {"fault": fault, "detail": traceback.format_exc()})
    # The channel stays open until the parent has read the answer.
    while True:
        parent.receive()


def _serve(parent: Parent, factory_path: str) -> NoReturn:
    opening = decode_opening(parent.receive().payload)
    factory: DesignerFactory = pkgutil.resolve_name(factory_path)
    designer = factory(opening.study)
    start_seconds = time.monotonic() - opening.started
    while True:
        message = parent.receive()
        request = decode_request(message.payload)
        if isinstance(request, PrepareRequest):
            _prepare(designer, request.answered, parent)
            if not parent.has_sent:
                _answer(parent, {"prepared": True})
            continue
        assignments = designer.suggest(request)
        costs = Costs(
            start_seconds=start_seconds,
            compile_seconds=designer.clock.seconds(),
            compile_wait_seconds=designer.clock.seconds_since(message.arrived),
            memory_mb=psutil.Process().memory_info().rss / 2**20,
        )
        _answer(parent, {"assignments": assignments, "costs": asdict(costs)})
        designer.clock.settle()
        _prepare(designer, request, parent)


def _prepare(designer: Designer, request: AskRequest, parent: Parent) -> None:
    if not parent.has_sent:
        designer.prepare(request, interrupted=lambda: parent.has_sent)


def _answer(parent: Parent, answer: dict[str, object]) -> None:
    parent.send(json.dumps(answer).encode())


if __name__ == "__main__":
    main(sys.argv[1])

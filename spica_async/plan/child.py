"""The planning process: the one of the coordinator's own that may load the engine.

Run as `python -m spica_async.plan.child`. It receives one request, sends answers, both as `wire`
says, and ends.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal, NoReturn

import structlog
from structlog.typing import EventDict

from schemas.messages import ModelFiles
from spica_async.engine import runtime
from spica_async.engine.model_files import ModelFilesError, folder_of, leave_namesake, own_model
from spica_async.engine.model_folder import check_left_behind
from spica_async.errors import InputError
from spica_async.plan.answers import Answers
from spica_async.plan.build import plan_sweep
from spica_async.plan.installed import InstalledEngine
from spica_async.plan.wire import decode_request, encode_plan
from spica_async.processes.parent import Parent

Kind = Literal["progress", "log", "plan", "input_error", "fault"]


def main() -> int:
    """Make one plan; the exit code is 0 whenever the answer could be written."""
    parent = Parent()

    def answer(kind: Kind, value: object) -> None:
        parent.send(json.dumps({kind: value}).encode())

    request = decode_request(parent.receive().payload)
    _log_through(answer)
    try:
        runtime.prepare()
        model_files, model_folder = _own_model(request.config.search_space.model_name)
        plan = plan_sweep(
            request.config,
            InstalledEngine(Answers.open(), model_folder),
            request.trace,
            lambda line: answer("progress", line),
        )
        plan = replace(plan, model_files=model_files)
        answer("plan", encode_plan(plan))
    except InputError as error:
        answer("input_error", str(error))
    except Exception:  # noqa: BLE001  # the parent shows the user, whatever it is
        answer("fault", traceback.format_exc())
    return 0


def _own_model(name: str) -> tuple[ModelFiles, Path] | tuple[None, None]:
    """A model that is called by its folder, as it is now, and where it stays like that."""
    try:
        files = own_model(name)
        if files is not None:
            check_left_behind(Path(name))
            return files, folder_of(files)
    except ModelFilesError as error:
        raise InputError(f"search_space.model_name: {error}") from None
    except ValueError as error:
        raise InputError(
            f"search_space.model_name: model {name!r} cannot be modelled: {error}"
        ) from None
    leave_namesake(name)
    return None, None


def _log_through(answer: Callable[[Kind, object], None]) -> None:
    """Leave it to the coordinator where log lines go: nobody reads this process's stderr."""

    def hand_over(_logger: object, _method: str, event: EventDict) -> NoReturn:
        answer("log", {name: str(value) for name, value in event.items()})
        raise structlog.DropEvent

    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            hand_over,
        ]
    )


if __name__ == "__main__":
    sys.exit(main())

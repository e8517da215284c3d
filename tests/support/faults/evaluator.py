"""What children evaluate with: a replay that sleeps, unless something was laid out for it.

Imported by the children of `support.faults.program`. All of it happens in one folder, which the
environment names; `support.faults.fates` is the test's view of the same folder.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from schemas.messages import EvaluationRequest, Measurement, Sample

FOLDER_VARIABLE: Final = "SPICA_FAULTS_FOLDER"
SECONDS_VARIABLE: Final = "SPICA_FAULTS_SECONDS"
EVERY: Final = "every"
_PATIENCE_SECONDS = 300.0


def evaluate(request: EvaluationRequest) -> Measurement:
    folder = Path(os.environ[FOLDER_VARIABLE])
    identity = request.evaluation_id
    started = folder / "started" / f"{identity}.{os.getppid()}.{os.getpid()}.{time.time_ns()}"
    started.touch()
    fate = _fate_of(identity, folder)
    if fate is None:
        time.sleep(float(os.environ[SECONDS_VARIABLE]))
    else:
        _FATES[fate](identity, folder)
    (folder / "ended" / started.name).touch()
    return Measurement(
        outcome="feasible", report={"output_throughput_tok_s": score(request.sample)}
    )


def score(sample: Sample) -> float:
    """A number that distinguishes this sample's result from every other."""
    return random.Random(json.dumps(sample, sort_keys=True)).randrange(1, 10**9) / 1000


def _fate_of(identity: str, folder: Path) -> str | None:
    """What is to become of an evaluation: what it was before, else what is laid out, if anything.

    A rename goes to one of those who try it at the same time.
    """
    own = folder / "taken" / identity
    if not own.exists():
        for laid_out in sorted((folder / "laid_out").iterdir()):
            try:
                laid_out.rename(own)
            except FileNotFoundError:
                continue
            break
    return own.read_text() if own.exists() else None


def _hold(identity: str, folder: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    released = [folder / "released" / name for name in (identity, EVERY)]
    while time.monotonic() < deadline and not any(path.exists() for path in released):
        time.sleep(0.01)


def _kill_child(identity: str, folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_worker(identity: str, folder: Path) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(_PATIENCE_SECONDS)


_FATES: Final[dict[str, Callable[[str, Path], None]]] = {
    "hold": _hold,
    "kill_child": _kill_child,
    "kill_worker": _kill_worker,
}

"""Evaluators that behave and misbehave as the sample says; imported by spawned children.

The sample's `do` names a function below; `folder` is a place to leave marks for the test.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from schemas.messages import EvaluationRequest, Measurement, Sample

GRANDCHILD = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); {}; time.sleep(600)"
)


def evaluate(request: EvaluationRequest) -> Measurement:
    sample = request.sample
    leave_mark(sample, f"run-{request.evaluation_id}-{os.getpid()}")
    behaviour: Callable[[Sample], object] = globals()[str(sample["do"])]
    return behaviour(sample)  # type: ignore[return-value]  # some return nonsense on purpose


def feasible(**report: float) -> Measurement:
    return Measurement(outcome="feasible", report={"pid": float(os.getpid()), **report})


def succeed(sample: Sample) -> Measurement:
    return feasible()


def tell_surroundings(sample: Sample) -> Measurement:
    names = ("DYN_LOG", "RUST_LOG", "OMP_NUM_THREADS")
    leave_mark(sample, "-".join(os.environ[name] for name in names))
    for name in os.environ:
        if name.startswith("SPICA_BUS"):
            leave_mark(sample, f"secret-{name}")
    return feasible(session=float(os.getsid(0)), group=float(os.getpgrp()))


def sleep(sample: Sample) -> Measurement:
    time.sleep(float(str(sample["seconds"])))
    return feasible()


def wait_for(sample: Sample) -> Measurement:
    """Go on once the test, or another evaluation, has left a mark."""
    while not (folder(sample) / str(sample["mark"])).exists():
        time.sleep(0.01)
    return feasible()


def meet(sample: Sample) -> Measurement:
    """Leave a mark and wait for the other's: passes only when both run at the same time."""
    leave_mark(sample, str(sample["own"]))
    return wait_for(sample)


def meet_and_read_model(sample: Sample) -> Measurement:
    """As `meet`, and tell the number of layers of the model."""
    meet(sample)
    text = (Path(str(sample["model_name"])) / "config.json").read_text()
    return feasible(layers=json.loads(text)["layers"])


def alone(sample: Sample) -> Measurement:
    """Fail when another evaluation runs in this process or more than `most` run in all."""
    mark = folder(sample) / f"running-{os.getpid()}"
    mark.touch(exist_ok=False)
    running = len(list(folder(sample).glob("running-*")))
    time.sleep(0.02)
    mark.unlink()
    if running > int(str(sample["most"])):
        raise RuntimeError(f"{running} run at once")
    return feasible()


def fail(sample: Sample) -> Measurement:
    raise ValueError("the shape\nis wrong")


def panic(sample: Sample) -> Measurement:
    class PanicError(BaseException):
        pass

    raise PanicError("unwrap on None")


def return_nonsense(sample: Sample) -> object:
    return {"outcome": "feasible"}


def return_too_much(sample: Sample) -> Measurement:
    return feasible(**{f"metric_{number}": 1.5 for number in range(40_000)})


def chatter(sample: Sample) -> Measurement:
    print("garbage on stdout")  # noqa: T201 - the point of it
    sys.stdout.flush()
    os.write(1, b'{"outcome": "infeasible"}\n')
    subprocess.run(["/bin/echo", "garbage from a program"], check=True)
    return feasible()


def exit_at_once(sample: Sample) -> Measurement:
    os._exit(7)


def segfault(sample: Sample) -> Measurement:
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(600)
    return feasible()


def sleep_and_exit(sample: Sample) -> Measurement:
    time.sleep(float(str(sample["seconds"])))
    os._exit(7)


def exit_once(sample: Sample) -> Measurement:
    if len(list(folder(sample).glob("run-*"))) == 1:
        os._exit(7)
    return feasible()


def exit_twice(sample: Sample) -> Measurement:
    if len(list(folder(sample).glob("run-*"))) <= 2:
        os._exit(7)
    return feasible()


def break_channel(sample: Sample) -> Measurement:
    channel().sendall(b"\0\0\0\2no")
    time.sleep(600)
    return feasible()


def close_channel(sample: Sample) -> Measurement:
    channel().shutdown(socket.SHUT_WR)
    time.sleep(600)
    return feasible()


def channel() -> socket.socket:
    """The socket to the slot, the only one that this process has."""
    for number in range(3, 64):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                return socket.socket(fileno=os.dup(number))
    raise LookupError("there is no channel")


def hang_with_grandchild(sample: Sample) -> Measurement:
    """Ignore SIGTERM, and have started a program that does so too."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    start_grandchild(sample)
    while True:
        time.sleep(600)


def exit_with_fork(sample: Sample) -> Measurement:
    """Leave a forked process behind that holds every descriptor of this one."""
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
    leave_mark(sample, f"grandchild-{pid}")
    os._exit(7)


def allocate(sample: Sample) -> Measurement:
    hoard = bytearray(int(str(sample["bytes"])))
    hoard[::4096] = b"x" * len(hoard[::4096])
    time.sleep(600)
    return feasible()


def allocate_in_grandchild(sample: Sample) -> Measurement:
    start_grandchild(sample, f"hoard = b'x' * {sample['bytes']}")
    time.sleep(600)
    return feasible()


def start_grandchild(sample: Sample, first: str = "pass") -> None:
    program = [sys.executable, "-c", GRANDCHILD.format(first)]
    leave_mark(sample, f"grandchild-{subprocess.Popen(program).pid}")


def folder(sample: Sample) -> Path:
    return Path(str(sample["folder"]))


def leave_mark(sample: Sample, name: str) -> None:
    with contextlib.suppress(KeyError):
        (folder(sample) / name).touch()


def warm_up() -> None:
    Path(os.environ["WARM_UP_MARK"]).touch()


def slow_set_up() -> Callable[[EvaluationRequest], None]:
    """Each child takes a while for what its first request needs."""
    done = set[str]()

    def set_up(request: EvaluationRequest) -> None:
        if not done:
            leave_mark(request.sample, f"set-up-{os.getpid()}")
            time.sleep(1.0)
        done.add(request.evaluation_id)

    return set_up


def hanging_set_up() -> Callable[[EvaluationRequest], None]:
    def set_up(request: EvaluationRequest) -> None:
        leave_mark(request.sample, f"set-up-{os.getpid()}")
        time.sleep(600)

    return set_up


def broken_set_up() -> Callable[[EvaluationRequest], None]:
    def set_up(request: EvaluationRequest) -> None:
        panic(request.sample)

    return set_up


def fail_once() -> None:
    mark = Path(os.environ["WARM_UP_MARK"])
    if not mark.exists():
        mark.touch()
        raise LookupError("not yet")


def succeed_once() -> None:
    """Of all children only one gets warm."""
    Path(os.environ["WARM_UP_MARK"]).touch(exist_ok=False)


def succeed_until_marked() -> None:
    if Path(os.environ["WARM_UP_MARK"]).exists():
        raise MemoryError("no room for one more")


def broken_warm_up() -> None:
    raise LookupError("no performance data")


def hanging_warm_up() -> None:
    time.sleep(600)


def deadly_warm_up() -> None:
    os._exit(9)

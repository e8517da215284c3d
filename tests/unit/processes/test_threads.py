"""Threads that the loop leaves work to."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from spica_async.processes.threads import (
    DaemonThreads,
    computed,
    in_threads,
    with_files,
)


async def test_calls_are_made_elsewhere_and_answered_here() -> None:
    def work(first: int, *, second: int) -> tuple[int, str]:
        return first + second, threading.current_thread().name

    value, name = await computed(work, 1, second=2)
    assert (value, name.partition("-")[0]) == (3, "computing")
    value, name = await with_files(work, 3, second=4)
    assert (value, name.partition("-")[0]) == (7, "files")
    with pytest.raises(ZeroDivisionError):
        await computed(lambda: 1 // 0)


def test_one_thread_makes_the_calls_in_their_order() -> None:
    threads = DaemonThreads(1, "one")
    made: list[int] = []
    for number in range(100):
        threads.submit(made.append, number)
    threads.shutdown()
    assert made == list(range(100))
    with pytest.raises(RuntimeError, match="after the shutdown"):
        threads.submit(made.append, 1)


def test_there_are_no_more_threads_than_calls_or_than_allowed() -> None:
    threads = DaemonThreads(3, "some")
    names = {threads.submit(lambda: threading.current_thread().name).result() for _ in range(20)}
    # One is made for each call that finds none at rest.
    assert names <= {"some-0", "some-1", "some-2"}
    gate = threading.Barrier(4)
    busy = [threads.submit(gate.wait) for _ in range(5)]
    gate.wait()
    assert sum(future.done() for future in busy) <= 3
    gate.abort()
    threads.shutdown()


async def test_whoever_waits_can_be_cancelled_though_the_call_hangs() -> None:
    threads, gate = DaemonThreads(1, "one"), threading.Event()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await in_threads(threads, gate.wait)
    gate.set()
    threads.shutdown()


def test_a_call_that_hangs_does_not_keep_the_process_from_its_end() -> None:
    program = (
        "import asyncio, threading\n"
        "from spica_async.processes.threads import with_files\n"
        "async def main():\n"
        "    try:\n"
        "        await asyncio.wait_for(with_files(threading.Event().wait), 0.05)\n"
        "    except TimeoutError:\n"
        "        print('given up')\n"
        "asyncio.run(main())\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], timeout=60, check=True, capture_output=True, text=True
    )
    assert ended.stdout == "given up\n"


BUSY = """
import sys, threading
from spica_async.processes.threads import DaemonThreads, leaving_threads_behind

def compute():
    while True:
        sum(range(1000))

with leaving_threads_behind():
    print("the last word")
    for hangs in (compute, threading.Event().wait):
        DaemonThreads(1, "busy").submit(hangs)
    sys.exit(7)
"""


def test_a_program_ends_with_its_own_code_whatever_threads_are_doing() -> None:
    for _ in range(3):
        ended = subprocess.run(
            [sys.executable, "-c", BUSY], timeout=60, check=False, capture_output=True, text=True
        )
        assert (ended.returncode, ended.stdout, ended.stderr) == (7, "the last word\n", "")


IDLE = """
import atexit, sys
from spica_async.processes.threads import DaemonThreads, leaving_threads_behind

atexit.register(print, "all the rest")
threads = DaemonThreads(1, "idle")
threads.submit(int)
threads.shutdown()
with leaving_threads_behind():
    sys.exit(3)
"""


def test_a_program_whose_threads_are_at_rest_ends_as_ever() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", IDLE], timeout=60, check=False, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout) == (3, "all the rest\n")

"""Threads for what would hold up the event loop, none of which holds up the end of the process.

A call into the kernel about a file may never return: the disk may be a network's. Python joins the
threads of its own executors when it ends, and the loop's executor has the look-ups of host names to
do as well, so such calls have threads of their own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Final, ParamSpec, TypeVar
from weakref import WeakSet

Arguments = ParamSpec("Arguments")
ResultT = TypeVar("ResultT")


_all: WeakSet[DaemonThreads] = WeakSet()


class DaemonThreads(Executor):
    """Makes calls in a bounded number of threads, begun in the order in which they come.

    Args:
        most: how many threads there are at most; one for calls that must not overtake each other.
        name: of the threads, as a debugger shows it.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._changing = Lock()
        self._threads: list[Thread] = []
        self._unfinished = 0
        self._is_shut = False
        _all.add(self)

    @property
    def is_busy(self) -> bool:
        """Whether a call is being made, or waits for its turn."""
        return self._unfinished > 0

    def submit(
        self,
        call: Callable[Arguments, ResultT],
        /,
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Future[ResultT]:
        """See `Executor.submit`."""
        future: Future[ResultT] = Future()
        with self._changing:
            if self._is_shut:
                raise RuntimeError("no calls are taken after the shutdown")
            self._unfinished += 1
            self._calls.put(partial(self._call, future, partial(call, *args, **kwargs)))
            if len(self._threads) < min(self._most, self._unfinished):
                name = f"{self._name}-{len(self._threads)}"
                thread = Thread(target=self._work, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002, ARG002  # the overridden signature; nobody cancels
        """Take no more calls; see `Executor.shutdown`."""
        with self._changing:
            self._is_shut = True
            self._calls.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            # What it holds is not to live until the next call.
            del call
        # For the next thread.
        self._calls.put(None)

    def _call(self, future: Future[ResultT], call: Callable[[], ResultT]) -> None:
        try:
            if future.set_running_or_notify_cancel():
                try:
                    result = call()
                except BaseException as error:  # noqa: BLE001  # raised where the result is awaited
                    future.set_exception(error)
                else:
                    future.set_result(result)
        finally:
            with self._changing:
                self._unfinished -= 1


@contextmanager
def leaving_threads_behind() -> Iterator[None]:
    """Let a program end by `sys.exit` though calls are still being made.

    What a thread does while the interpreter is taken down beneath it may crash the process, so it
    ends at once instead.
    """
    try:
        yield
    except SystemExit as end:
        if any(threads.is_busy for threads in list(_all)):
            logging.shutdown()
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):
                    stream.flush()
            os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise


_FILES: Final = DaemonThreads(16, "files")
_COMPUTING: Final = DaemonThreads(2, "computing")


async def with_files(
    work: Callable[Arguments, ResultT], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> ResultT:
    """Do something with files, which may take for ever, in a thread."""
    return await in_threads(_FILES, partial(work, *args, **kwargs))


async def computed(
    work: Callable[Arguments, ResultT], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> ResultT:
    """Compute something, which takes longer than the loop can wait, in a thread."""
    return await in_threads(_COMPUTING, partial(work, *args, **kwargs))


async def in_threads(threads: DaemonThreads, work: Callable[[], ResultT]) -> ResultT:
    """Do something in one of these threads; it goes on though the caller be cancelled."""
    call: Callable[..., Any] = copy_context().run
    return await asyncio.get_running_loop().run_in_executor(threads, call, work)

"""Calls made at once where others have a thread for them, for tests in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
ResultT = TypeVar("ResultT")


class Inline(Executor):
    """Stands in for `DaemonThreads`."""

    def __init__(self, most: int, name: str) -> None:
        pass

    def submit(
        self,
        call: Callable[Arguments, ResultT],
        /,
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Future[ResultT]:
        future: Future[ResultT] = Future()
        future.set_result(call(*args, **kwargs))
        return future

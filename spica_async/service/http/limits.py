"""How many event streams are open, and the end of all of them when the server ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from spica_async.service.http.problems import ProblemError


class Streams:
    """The event streams of one application.

    Attributes:
        most: that may be open at a time.
        open: that are open now.
        ending: set when they are all to end, for good.
    """

    def __init__(self, most: int, *, retry_seconds: int) -> None:
        self.most = most
        self.open = 0
        self.ending = asyncio.Event()
        self._later = {"Retry-After": str(retry_seconds)}

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count one more as long as the context is open.

        Raises:
            ProblemError: there are as many as may be, or they are ending.
        """
        if self.ending.is_set():
            raise ProblemError(
                HTTPStatus.SERVICE_UNAVAILABLE, "the daemon is being stopped", self._later
            )
        if self.open >= self.most:
            raise ProblemError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{self.most} event streams are open, which is as many as may be",
                self._later,
            )
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1

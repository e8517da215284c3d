"""Has a sweep's folder written in a thread of its own, so that a disk that hangs stops nobody."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from threading import RLock
from typing import ClassVar, Final, Self

import structlog

from schemas.config import SmartSearchConfig
from schemas.results import CandidateRecord, SweepResult
from spica_async.plan.types import SweepPlan
from spica_async.processes.threads import DaemonThreads
from spica_async.report.folder import ResultsFolder
from spica_async.search.observer import Observer

PATIENCE_SECONDS: Final = 10.0
"""For one file, or some lines; any disk that works is done by then."""

_POLL_SECONDS: Final = 0.05
_LINES_AT_ONCE: Final = 200

log = structlog.get_logger(__name__)


class _FolderThread:
    """The one thread that writes to a folder, for all its writers: what is late comes before.

    Attributes:
        busy_since: when the call that is being made began, by the monotonic clock.
        users: how many writers have it.
    """

    _known: ClassVar[dict[Path, _FolderThread]] = {}
    # Reentrant, for an executor that makes a call at once.
    _changing: ClassVar[RLock] = RLock()

    def __init__(self, path: Path) -> None:
        self.busy_since: float | None = None
        self._path = path
        self._calls = DaemonThreads(1, f"folder-{path.name}")
        self.users = 0

    @classmethod
    def of(cls, path: Path) -> _FolderThread:
        """The thread of a folder, until `give_back`."""
        with cls._changing:
            thread = cls._known.setdefault(path, cls(path))
            thread.users += 1
            return thread

    def give_back(self) -> None:
        """Let it end after all that it has to do, unless somebody else has it by then."""
        with self._changing:
            self.users -= 1
            # In here, lest another's `_retire` end the thread in between.
            self._calls.submit(self._retire)

    def submit(self, call: Callable[[], None]) -> Future[None]:
        """Have a call made after all others."""
        return self._calls.submit(self._make, call)

    def _make(self, call: Callable[[], None]) -> None:
        self.busy_since = time.monotonic()
        try:
            call()
        finally:
            self.busy_since = None

    def _retire(self) -> None:
        with self._changing:
            if self.users == 0 and self._known.get(self._path) is self:
                del self._known[self._path]
                self._calls.shutdown(wait=False)


class FolderWriter(Observer):
    """Writes one sweep's files, in the order of the calls, none of which waits for the disk.

    What is to be written follows what the journal has, and may be late. A disk that hangs is warned
    of; the sweep goes on and ends without it. What is left by then is written once the disk works
    again, while this process lives; after that, resuming the sweep writes the folder anew.

    An error of the disk shows at the next call, or in `settled`.

    Attributes:
        path: the path of the folder.
    """

    # Set in the thread, before anything is written.
    _folder: ResultsFolder

    def __init__(self, path: Path) -> None:
        self.path = path
        self._thread = _FolderThread.of(path)
        self._open = ExitStack()
        self._records: deque[CandidateRecord] = deque()
        self._last: Future[None] | None = None
        self._failure: BaseException | None = None
        self._warned = False

    @classmethod
    @asynccontextmanager
    async def open(cls, root: Path, sweep_id: str, *, resumed: bool = False) -> AsyncIterator[Self]:
        """Make the folder `root/sweep_id`, or open that of an earlier run.

        See `ResultsFolder.open`.

        Raises:
            InputError: it cannot be made or opened.
        """
        writer = cls(root / sweep_id)

        def begin() -> None:
            writer._folder = writer._open.enter_context(
                ResultsFolder.open(root, sweep_id, resumed=resumed)
            )

        try:
            writer._submit(begin)
            await writer.settled()
            yield writer
        finally:
            is_known = writer._failure is not None
            writer._submit(writer._open.close)
            writer._thread.give_back()
            # After a wait in vain there is no other one.
            if not writer._warned:
                await writer._wait()
            if not is_known:
                writer._complain()

    @property
    def logs(self) -> Path:
        """The folder for the logs of processes."""
        return self.path / "logs"

    def write_config(self, config: SmartSearchConfig) -> None:
        """See `ResultsFolder.write_config`."""
        self._do(lambda folder: folder.write_config(config))

    def write_plan(self, plan: SweepPlan) -> None:
        """See `ResultsFolder.write_plan`."""
        self._do(lambda folder: folder.write_plan(plan))

    def resumed(self) -> None:
        """See `ResultsFolder.show_candidates`."""
        self._do(ResultsFolder.show_candidates)

    def restored(self, record: CandidateRecord) -> None:
        """Add one line."""
        self.evaluated(record)

    def evaluated(self, record: CandidateRecord) -> None:
        """Add one line. What waits is no more than the sweep keeps of its candidates anyway."""
        self._complain()
        self._records.append(record)
        if len(self._records) == 1:
            self._do(self._append_all)

    def captured(self, candidate_id: str, artifact: str) -> None:
        """See `ResultsFolder.write_artifact`."""
        self._do(lambda folder: folder.write_artifact(candidate_id, artifact))

    def ended(self, result: SweepResult, *, pareto: bool) -> None:
        """See `ResultsFolder.write_result`."""
        self._do(lambda folder: folder.write_result(result, pareto=pareto))

    async def settled(self) -> None:
        """Wait until all is written, or the disk hangs.

        Raises:
            SpicaError: it cannot be written; an `InputError` if there can be no such folder.
        """
        await self._wait()
        self._complain()

    async def _wait(self) -> None:
        last = self._last
        while last is not None and not last.done() and not self._hangs():
            waiting = asyncio.wrap_future(last)
            await asyncio.wait([waiting], timeout=_POLL_SECONDS)

    def _hangs(self) -> bool:
        since = self._thread.busy_since
        if since is None or time.monotonic() - since < PATIENCE_SECONDS:
            return False
        if not self._warned:
            self._warned = True
            log.warning(
                "results.folder_hangs",
                folder=str(self.path),
                seconds=PATIENCE_SECONDS,
                hint="the journal has it all: `spica-async resume` writes the folder anew",
            )
        return True

    def _append_all(self, folder: ResultsFolder) -> None:
        # Some at a time, since a disk that works is not to be taken for one that hangs.
        while self._records:
            self._thread.busy_since = time.monotonic()
            for _ in range(min(len(self._records), _LINES_AT_ONCE)):
                folder.append(self._records[0])
                self._records.popleft()

    def _complain(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _do(self, write: Callable[[ResultsFolder], None]) -> None:
        """Have something written after everything that was to be written before."""
        self._complain()
        self._hangs()
        self._submit(lambda: write(self._folder))

    def _submit(self, call: Callable[[], None]) -> None:
        self._last = self._thread.submit(partial(self._make, call))

    def _make(self, call: Callable[[], None]) -> None:
        # In the thread; what comes after a failure would only fail as well, but for the end.
        if self._failure is not None and call != self._open.close:
            return
        try:
            call()
        except BaseException as error:  # noqa: BLE001  # the next call raises it
            self._failure = self._failure or error

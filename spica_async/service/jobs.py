"""The two ways to begin a run of a sweep: a new sweep, or one that the journal has."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from schemas.config import SmartSearchConfig
from spica_async.config.inputs import Inputs
from spica_async.errors import InputError, SpicaError
from spica_async.journal.leases import new_lease, take
from spica_async.journal.opening import JournalOptions, opened
from spica_async.journal.port import Journal, Lease, NewSweep, StatusUpdate, SweepRow
from spica_async.places import check_folder
from spica_async.report.folder import config_document, new_sweep_id
from spica_async.report.folder_writer import FolderWriter
from spica_async.search.events.pending import PendingEvents, listed, submitted_event
from spica_async.search.fact_log import SweepLog
from spica_async.search.past_runs import PastRuns
from spica_async.service.port import WrongStateError


def new_sweep(
    sweep_id: str,
    config: SmartSearchConfig,
    folder: Path,
    *,
    priority: int = 0,
    managed: bool = False,
    use_cache: bool = True,
    token: str | None = None,
) -> NewSweep:
    """The entry of a new sweep in the journal; see `NewSweep`."""
    return NewSweep(
        sweep_id=sweep_id,
        folder=str(folder),
        config=json.dumps(config_document(config)),
        priority=priority,
        managed=managed,
        use_cache=use_cache,
        token=token,
        summary=listed(config).model_dump_json(exclude_none=True),
        events=[submitted_event(sweep_id, config, priority=priority)],
    )


class Job(Protocol):
    """A sweep to be run by this process."""

    @property
    def sweep_id(self) -> str:
        """Its name."""

    @property
    def inputs(self) -> Inputs:
        """Its configuration and its trace."""

    @property
    def folder(self) -> Path:
        """Where its results are, or are to be."""

    async def before_planning(self, stack: AsyncExitStack) -> PastRuns:
        """See that it can be run at all; what it has come to so far.

        Raises:
            SpicaError: it cannot.
        """

    async def after_planning(self, stack: AsyncExitStack) -> tuple[FolderWriter, SweepLog]:
        """Open everything that is written to: the folder, and the log of the sweep.

        Raises:
            SpicaError: something of it cannot be opened.
        """


@dataclass(slots=True)
class NewJob:
    """A new sweep, which the journal has only once it is planned.

    Attributes:
        inputs: the configuration and the trace of the sweep.
        root: the folder for its own folder.
        journal: the journal that the sweep is entered into.
        use_cache: whether what was measured before need not be measured again.
        sweep_id: the name of the sweep.
    """

    inputs: Inputs
    root: Path
    journal: JournalOptions
    use_cache: bool
    sweep_id: str = field(default_factory=new_sweep_id, init=False)
    _opened: Journal | None = field(default=None, init=False)

    @property
    def folder(self) -> Path:
        """Where its results are to be."""
        return self.root / self.sweep_id

    async def before_planning(self, stack: AsyncExitStack) -> PastRuns:
        """A server that does not answer shows before the work begins."""
        if self.journal.is_server:
            self._opened = await stack.enter_async_context(opened(self.journal))
        return PastRuns()

    async def after_planning(self, stack: AsyncExitStack) -> tuple[FolderWriter, SweepLog]:
        """Make the folder, and enter the sweep into the journal as ours."""
        lease = new_lease()
        folder = await stack.enter_async_context(FolderWriter.open(self.root, self.sweep_id))
        folder.write_config(self.inputs.config)
        journal = self._opened
        if journal is None:
            journal = await stack.enter_async_context(opened(self.journal))
        lasting_folder = self.folder.absolute()
        sweep = new_sweep(
            self.sweep_id, self.inputs.config, lasting_folder, use_cache=self.use_cache
        )
        await journal.create(sweep, lease)
        events = PendingEvents(self.sweep_id, self.inputs.config, stored=1)
        log = await stack.enter_async_context(
            SweepLog(journal, self.sweep_id, lease, last=0, events=events).open()
        )
        return folder, log


@dataclass(slots=True)
class ResumedJob:
    """A sweep that the journal has: resumed, or begun for the first time.

    Attributes:
        sweep_id: the name of the sweep.
        inputs: the configuration and the trace of the sweep.
        folder: where its results are.
        journal: opens the journal that has it.
        on_change: called when the journal has something new to publish.
        only_from: the statuses that it may have when it is ours; none: any, and from then on no
            daemon runs it by itself, and what was requested of it before is done with.
        most_futile_runs: how often its coordinator may have died with nothing measured.
    """

    sweep_id: str
    inputs: Inputs
    folder: Path
    journal: Callable[[], AbstractAsyncContextManager[Journal]]
    on_change: Callable[[], None] = lambda: None
    only_from: Collection[str] | None = None
    most_futile_runs: int | None = None
    _lease: Lease = field(default_factory=new_lease, init=False)
    # Entered before the log, which may have something to write to it until it is closed.
    _folders: AsyncExitStack = field(default_factory=AsyncExitStack, init=False)
    _log: SweepLog | None = field(default=None, init=False)

    async def before_planning(self, stack: AsyncExitStack) -> PastRuns:
        """Take the sweep, so that nobody else does, and read what it has come to.

        Raises:
            WrongStateError: it is in another state by now.
            SweepTakenError: somebody else runs it.
            StorageError: it cannot be read.
        """
        journal = await stack.enter_async_context(self.journal())
        try:
            await take(journal, self.sweep_id, self._lease)
            row, past = await self._checked(journal)
        except BaseException:
            await journal.give_back(self.sweep_id, self._lease.owner)
            raise
        events = PendingEvents(
            self.sweep_id, self.inputs.config, stored=row.events, on_change=self.on_change
        )
        await stack.enter_async_context(self._folders)
        self._log = await stack.enter_async_context(
            SweepLog(journal, self.sweep_id, self._lease, last=past.last, events=events).open()
        )
        return past

    async def _checked(self, journal: Journal) -> tuple[SweepRow, PastRuns]:
        row = await journal.sweep(self.sweep_id)
        if self.only_from is None:
            # A command looks at no requests, so daemons are to know whose it is from now on.
            taken = StatusUpdate(managed=False, request_done=True)
            await journal.append(row.sweep_id, self._lease.owner, [], after=row.last, changes=taken)
        elif row.status not in self.only_from:
            raise WrongStateError(f"sweep {self.sweep_id} is {row.status} by now")
        past = await PastRuns.read(journal, self.sweep_id)
        if self.most_futile_runs is not None and past.futile_runs >= self.most_futile_runs:
            raise SpicaError(
                f"its coordinator has died {past.futile_runs} times in a row before anything was"
                " measured"
            )
        return row, past

    async def after_planning(self, stack: AsyncExitStack) -> tuple[FolderWriter, SweepLog]:  # noqa: ARG002  # the protocol's
        """Open its folder again."""
        assert self._log is not None  # noqa: S101  # planning came after `before_planning`
        root, name = self.folder.parent, self.folder.name
        folder = await self._folders.enter_async_context(
            FolderWriter.open(root, name, resumed=True)
        )
        folder.write_config(self.inputs.config)
        return folder, self._log


def check_root(root: Path) -> None:
    """See that results can be written, and that the journal can keep where they are.

    Args:
        root: the folder for the folders of sweeps.

    Raises:
        InputError: they cannot, or the absolute path is no text, as a journal keeps it.
    """
    path = root.absolute()
    try:
        str(path).encode()
    except UnicodeEncodeError:
        shown = os.fsencode(path).decode(errors="backslashreplace")
        raise InputError(f"--output: the path {shown} is not valid UTF-8") from None
    check_folder(f"--output {root}", path)

"""The traces that this host has: found by digest, fetched when absent, kept within a bound."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import Final

import structlog

from schemas.messages import TraceLoad
from spica_async.bus.limits import DEFAULT_FETCH_SECONDS
from spica_async.errors import InputError, file_problem
from spica_async.places import user_cache_folder
from spica_async.processes.threads import with_files
from spica_async.traces.sources import DEFAULT_SCHEMES
from workers.cached_files import (
    DRAFT_SUFFIX,
    Identity,
    cached_path,
    evict,
    hold,
    identity,
    keep,
    remove_abandoned,
    sha256,
    touch,
)
from workers.port import UnavailableError

DEFAULT_MAX_BYTES: Final = 10 * 2**30
_SHOWN_DIGITS: Final = 12

log = structlog.get_logger(__name__)


class TraceUnavailableError(UnavailableError):
    """A trace could be had from nowhere; the message says what was tried, without any secret."""

    cause = "trace_unavailable"


@dataclass(slots=True)
class _Entry:
    """A trace that somebody uses or waits for."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0
    path: Path | None = None
    held: int | None = None
    """The descriptor whose lock keeps the cached file; none for a file that is not ours."""
    failure: tuple[TraceLoad, TraceUnavailableError] | None = None


class TraceCache:
    """Gives traces as local files.

    Args:
        folder: Made if need be and rid of abandoned downloads; by default the user's cache folder,
            or else one that ends with this process.
        max_bytes: Of all traces in it; only those in use may exceed it.
        fetch_seconds: The most that it may take until a trace is there.
        pause_seconds: Before the second attempt at a source; doubles with each.
        schemes: Of the sources that are asked at all.

    Raises:
        InputError: The folder cannot be used.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        fetch_seconds: float = DEFAULT_FETCH_SECONDS,
        pause_seconds: float = 0.5,
        schemes: Collection[str] = DEFAULT_SCHEMES,
    ) -> None:
        self.folder = folder or user_cache_folder() / "traces"
        self.schemes = schemes
        self._max_bytes = max_bytes
        self._fetch_seconds = fetch_seconds
        self._pause_seconds = pause_seconds
        self._entries: dict[str, _Entry] = {}
        self._digests: dict[Identity, str] = {}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_abandoned(self.folder)
        except OSError as error:
            problem = file_problem(error)
            if folder is not None:
                raise InputError(f"--trace-cache: {folder}: {problem}") from error
            log.warning("trace_cache.not_kept", folder=str(self.folder), error=problem)
            # Removed with the cache.
            self._temporary = TemporaryDirectory(prefix="spica-traces-")
            self.folder = Path(self._temporary.name)

    @asynccontextmanager
    async def use(self, load: TraceLoad) -> AsyncIterator[Path]:
        """A file with exactly this trace, which stays as long as the context.

        It is looked for in the cache, then where the load says that it lies, then at the load's
        sources in their order. Of several who want one trace at a time one fetches it.

        Raises:
            TraceUnavailableError: it is nowhere to be had, or not in time.
        """
        entry = self._entries.setdefault(load.sha256, _Entry())
        entry.users += 1
        try:
            yield await self._path(entry, load)
        finally:
            entry.users -= 1
            if not entry.users:
                del self._entries[load.sha256]
                if entry.held is not None:
                    await self._release(entry.held)

    async def _path(self, entry: _Entry, load: TraceLoad) -> Path:
        problems: list[str] = []
        try:
            async with asyncio.timeout(self._fetch_seconds), entry.lock:
                if entry.path is None:
                    _raise_again(entry.failure, load)
                    await self._find(entry, load, problems)
        except TimeoutError:
            problems.append(f"not fetched within {self._fetch_seconds:g} s")
        except OSError as error:
            # Of the cache's own files; those of a source are handled where it is read.
            problems.append(f"{self.folder}: {file_problem(error)}")
        if entry.path is not None:
            return entry.path
        failure = TraceUnavailableError(
            f"trace {_short(load)} of {load.size_bytes:,} bytes: {'; '.join(problems)}"
        )
        entry.failure = (load, failure)
        raise failure

    async def _find(self, entry: _Entry, load: TraceLoad, problems: list[str]) -> None:
        """Set the entry's path, or say in `problems` why not."""
        entry.held = await self._hold(load)
        if entry.held is not None:
            entry.path = cached_path(self.folder, load.sha256)
        elif await self._is_shared(load, problems):
            entry.path = Path(load.path)
        elif load.sources:
            entry.held = await self._fetch(load, problems)
            entry.path = None if entry.held is None else cached_path(self.folder, load.sha256)
        else:
            problems.append("no sources to fetch it from")

    async def _hold(self, load: TraceLoad) -> int | None:
        """Lock the cached file, if there is a good one, against eviction."""
        path = cached_path(self.folder, load.sha256)
        # Not in a thread, whose result a cancellation would lose, and the lock with it.
        held = hold(path)
        if held is None:
            return None
        try:
            if await self._has_digest(path, load):
                return held
            log.warning("worker.trace_damaged", path=str(path))
            path.unlink(missing_ok=True)
        except BaseException:
            os.close(held)
            raise
        os.close(held)
        return None

    async def _is_shared(self, load: TraceLoad, problems: list[str]) -> bool:
        """Whether the trace lies here where it lies for the coordinator."""
        try:
            if await self._has_digest(Path(load.path), load):
                return True
            problems.append(f"{load.path}: is not this trace")
        except (OSError, ValueError) as error:  # The latter of a path that holds a null byte.
            problems.append(f"{load.path}: {file_problem(error)}")
        return False

    async def _fetch(self, load: TraceLoad, problems: list[str]) -> int | None:
        """Download from the first source that has the trace, and lock the cached file."""
        from workers.fetch import SourceError, fetch, shown  # noqa: PLC0415 - heavy, seldom needed

        began = time.monotonic()
        # Somebody may have cleared it away since the start.
        self.folder.mkdir(parents=True, exist_ok=True)
        await self._make_room(load.size_bytes)
        for source in load.sources:
            # Unbuffered, so that a full disk shows while writing and never while closing.
            with NamedTemporaryFile(
                dir=self.folder, prefix=_short(load) + "-", suffix=DRAFT_SUFFIX, buffering=0
            ) as draft:
                try:
                    await fetch(
                        load,
                        source,
                        draft,
                        schemes=self.schemes,
                        pause_seconds=self._pause_seconds,
                    )
                except SourceError as error:
                    log.warning("worker.trace_source_failed", problem=str(error))
                    problems.append(str(error))
                    continue
                await with_files(os.fsync, draft.fileno())
                self._digests[identity(os.fstat(draft.fileno()))] = load.sha256
                if not keep(draft.fileno(), draft.name, cached_path(self.folder, load.sha256)):
                    log.info("worker.trace_fetched_twice", trace=_short(load))
                held = await self._hold(load)
            if held is not None:
                seconds = round(time.monotonic() - began, 3)
                log.info(
                    "worker.trace_fetched",
                    trace=_short(load),
                    source=shown(source.url),
                    seconds=seconds,
                )
                return held
            problems.append("evicted or damaged as soon as it was fetched")
        return None

    async def _has_digest(self, path: Path, load: TraceLoad) -> bool:
        """Whether it is the trace's file; an unchanged file is read through once."""
        status = await with_files(path.stat)
        if not stat.S_ISREG(status.st_mode) or status.st_size != load.size_bytes:
            return False
        known = self._digests.get(identity(status))
        if known is None:
            known = await with_files(sha256, path)
            self._digests[identity(status)] = known
        return known == load.sha256

    async def _make_room(self, size_bytes: int) -> None:
        try:
            await with_files(evict, self.folder, self._max_bytes - size_bytes)
        except OSError as error:
            # There may be room all the same; whether there is, the download will show.
            log.warning("worker.trace_eviction_failed", error=str(error))

    async def _release(self, held: int) -> None:
        """Let a cached file go, and bring the cache back to its bound."""
        try:
            touch(held)
        except OSError as error:
            log.warning("worker.trace_use_not_noted", error=str(error))
        finally:
            os.close(held)
        await self._make_room(0)


def _raise_again(failure: tuple[TraceLoad, TraceUnavailableError] | None, load: TraceLoad) -> None:
    """Let those who waited share the failure, instead of failing one after the other."""
    if failure is None:
        return
    failed, error = failure
    if failed.path == load.path and failed.sources == load.sources:
        raise error


def _short(load: TraceLoad) -> str:
    return load.sha256[:_SHOWN_DIGITS]

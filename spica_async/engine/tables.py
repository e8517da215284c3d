"""Performance tables in the user's cache, written once for each system and version of a backend.

The process that needs them first writes them, processes of one host share them, and one that
cannot have them replays from the engine's own folder: slower, with the same report.
"""

from __future__ import annotations

import fcntl
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from spica_async.engine import facts
from spica_async.engine.config import Tables
from spica_async.engine.kept_folders import note_use, write_folder
from spica_async.engine.own_files import SYSTEMS_VARIABLE, own_settings
from spica_async.engine.table_layout import LAYOUT, Origin, write_tables
from spica_async.engine.versions import engine_fingerprint
from spica_async.errors import file_problem, keep_traceback
from spica_async.places import user_cache_folder

_known: dict[tuple[str, str], Tables | None] = {}


def prepared_tables(sku: str, backend: str) -> Tables | None:
    """The tables of one system and backend, written now if nobody has done so (about 2 s).

    Returns:
        None if there are none to prepare or no place to keep them: the engine's own do as well.
    """
    key = sku, backend
    if key not in _known:
        _known[key] = _find_or_write(sku, backend)
    tables = _known[key]
    if tables is not None and not tables.systems.is_dir():
        # Somebody cleared the cache.
        tables = _known[key] = _find_or_write(sku, backend)
    return tables


def tables_folder() -> Path:
    """Where prepared tables are kept; may be removed whenever nothing is being replayed."""
    return user_cache_folder() / "tables"


def _find_or_write(sku: str, backend: str) -> Tables | None:
    if SYSTEMS_VARIABLE in own_settings():  # Tables of the user's own may change at any time.
        return None
    try:
        version = facts.backend_version(sku, backend)
    except (facts.UnknownSkuError, facts.NoPerfDatabaseError):
        return None  # The engine says so itself, and in its own words.
    origin = Origin(facts.systems_folder(sku), sku, backend, version)
    folder = tables_folder()
    target = folder / _name(origin)
    try:
        if not target.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            with _alone(folder):
                write_folder(target, partial(write_tables, origin), is_whole=target.is_dir)
        note_use(target)
    except Exception as error:  # noqa: BLE001  # see below
        # A replay that could do without must not fail for it. Imported late, since a child that
        # has nothing to log starts 0.2 s sooner.
        import structlog  # noqa: PLC0415 - see above

        log = structlog.get_logger(__name__)
        problem = (
            file_problem(error)
            if isinstance(error, OSError)
            else keep_traceback(traceback.format_exc())
        )
        log.warning("tables_not_prepared", folder=str(target), error=problem)
        return None
    return Tables(target, version)


def _name(origin: Origin) -> str:
    """A name that changes with whatever the content depends on."""
    return f"{origin.sku}-{origin.backend}-{origin.version}-{engine_fingerprint()}-{LAYOUT}"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process of this host write at a time; the kernel frees the place of a dead one."""
    with (folder / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

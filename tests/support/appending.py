"""A program that appends to a journal until it is stopped, and prints each number that it holds.

    python appending.py URL [BYTES]

With BYTES no file of its own may grow beyond so many, until it has run into that once. It prints
`ready`, each acknowledged number, and `full` where there was no room.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import sys
from pathlib import Path

from spica_async.journal.port import Fact, Lease, NewSweep, SweepExistsError
from spica_async.journal.sql import SqlJournal
from spica_async.storage.errors import StorageFullError

LEASE = Lease("me", 600.0)


async def _append_for_ever(url: str) -> None:
    async with SqlJournal.open(url) as journal:
        with contextlib.suppress(SweepExistsError):
            await journal.create(NewSweep("one", "/results", "{}"))
        last = await journal.take("one", LEASE)
        _print("ready")
        while True:
            # Several at a time, so that a part of them would be noticed.
            facts = [Fact("counted", json.dumps({"n": last + 1 + place})) for place in range(3)]
            try:
                last = await journal.append("one", "me", facts, after=last)
            except StorageFullError as error:
                assert (await journal.sweep("one")).last == last
                _print(f"full {error}")
                _make_room()
                last = await journal.append("one", "me", facts, after=last)
            _print(last)


def _print(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def _make_room() -> None:
    """Allow large files, and delete the one that fills the disk, as the case may be."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    Path("filler").unlink(missing_ok=True)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
    asyncio.run(_append_for_ever(sys.argv[1]))

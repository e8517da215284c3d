"""Forgets sweeps that ended long ago, so that a journal does not grow for ever."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import structlog

from spica_async.journal.port import ENDED, Journal, SweepTakenError, SweepUnknownError
from spica_async.storage.errors import StorageError

RETIRED: Final = ENDED | {"cancelled", "failed"}
"""The statuses of sweeps that are retired. What was paused or interrupted waits for somebody."""

_AT_ONCE: Final = 500
_DAY_SECONDS: Final = 24 * 3600.0
_LOOK_SECONDS: Final = 3600.0

log = structlog.get_logger(__name__)


async def retire(journal: Journal, *, keep_days: float, at_once: int = _AT_ONCE) -> int:
    """Remove the sweeps that ended before so many days, with their facts and events.

    Each is a transaction of its own, so that others that write meanwhile hardly wait. Folders of
    results stay: they are the user's.

    Args:
        journal: has the sweeps.
        keep_days: for how long what has ended is kept.
        at_once: the number of sweeps that are listed by one query.

    Returns:
        How many were removed.

    Raises:
        StorageError: the journal is away; what was removed until then is removed.
    """
    removed = 0
    while True:
        found = await journal.long_ended(
            RETIRED, for_seconds=keep_days * _DAY_SECONDS, limit=at_once
        )
        before = removed
        for sweep_id in found:
            # Somebody may have resumed or removed it meanwhile.
            with suppress(SweepTakenError, SweepUnknownError):
                removed += await journal.remove(sweep_id, only_from=RETIRED)
        if len(found) < at_once or removed == before:
            return removed


async def keep_retiring(
    journal: Journal, *, keep_days: float, every_seconds: float = _LOOK_SECONDS
) -> None:
    """Retire sweeps now and then, for good; while the journal is away that waits for the next time.

    Args:
        journal: has the sweeps.
        keep_days: see `retire`.
        every_seconds: between one time and the next.
    """
    while True:
        try:
            removed = await retire(journal, keep_days=keep_days)
        except StorageError as error:
            log.warning("sweeps.not_retired", error=str(error))
        else:
            if removed:
                log.info("sweeps.retired", removed=removed, keep_days=keep_days)
        await asyncio.sleep(every_seconds)

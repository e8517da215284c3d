"""Stops and queues sweeps that nobody runs, by writing to the journal."""

from __future__ import annotations

from pydantic import ValidationError

from schemas.journal import SWEEP_FACT, Stopped
from schemas.lifecycle import SweepEvent
from spica_async.journal.leases import new_lease, take
from spica_async.journal.opening import config_of
from spica_async.journal.port import Fact, Journal, StatusUpdate, SweepRow
from spica_async.search.events.from_facts import EventsFromFacts
from spica_async.service.port import WrongStateError
from spica_async.service.stored import listed_of
from spica_async.storage.errors import StorageError


async def stop_idle_sweep(
    journal: Journal, row: SweepRow, status: str, *, failure: str | None = None
) -> None:
    """Stop a sweep that nobody runs, with an event of it.

    Args:
        journal: the journal that has the sweep.
        row: the sweep as it was when this was decided.
        status: `paused`, `cancelled` or `failed`.
        failure: what went wrong; none: somebody asked for it.

    Raises:
        SweepTakenError: somebody runs it by now.
        WrongStateError: it is in another state by now.
    """
    before = await _last_stop(journal, row.sweep_id)
    stopped = Stopped(
        at=before.at if before is not None else 0.0,
        reason=failure or f"it was {status} while nobody ran it",
        failed=failure is not None,
        cancelled=status == "cancelled",
        result=before.result if before is not None else None,
    )
    await _write(journal, row, status, stopped)


async def queue_idle_sweep(journal: Journal, row: SweepRow) -> None:
    """Queue a sweep that has stopped; a request that was made of it before is forgotten.

    Raises:
        SweepTakenError: somebody runs it by now.
        WrongStateError: it is in another state by now.
    """
    await _write(journal, row, "queued", None)


async def _write(journal: Journal, row: SweepRow, status: str, fact: Stopped | None) -> None:
    lease = new_lease()
    await take(journal, row.sweep_id, lease)
    try:
        now = await journal.sweep(row.sweep_id)
        if now.status != row.status:
            raise WrongStateError(f"sweep {row.sweep_id} is {now.status} by now")
        events: list[str] = []
        if fact is not None:
            events = _events_for(now, fact)
            # Events of earlier facts that a coordinator did not get to write come behind this one.
            fact = fact.model_copy(update={"event": now.events + 1 if events else None})
        listed = listed_of(now)
        reason = fact.reason if fact is not None else None
        changes = StatusUpdate(
            status=status,
            # Of one that cannot be read nothing is lost.
            summary=listed.model_copy(update={"reason": reason}).model_dump_json()
            if listed is not None
            else None,
            events=events,
            events_after=now.events,
            managed=True if fact is None else None,
            request_done=fact is None,
        )
        facts = [Fact(fact.kind, fact.model_dump_json())] if fact is not None else []
        await journal.append(row.sweep_id, lease.owner, facts, after=now.last, changes=changes)
    finally:
        await journal.give_back(row.sweep_id, lease.owner)


async def _last_stop(journal: Journal, sweep_id: str) -> Stopped | None:
    recorded = await journal.latest(sweep_id, ["stopped"])
    try:
        fact = SWEEP_FACT.validate_json(recorded.fact.body) if recorded is not None else None
    except ValidationError:
        return None  # Of another version; it is for the figures alone.
    return fact if isinstance(fact, Stopped) else None


def _events_for(row: SweepRow, fact: Stopped) -> list[str]:
    try:
        events = EventsFromFacts(config_of(row).goal).fact(fact)
    except StorageError:
        return []  # Its configuration cannot be read.
    return [
        SweepEvent.of(row.sweep_id, number, data).model_dump_json(exclude_none=True)
        for number, data in enumerate(events, row.events + 1)
    ]

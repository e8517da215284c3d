"""The durable record of every sweep: what a coordinator that starts again goes on from."""

from spica_async.journal.address import journal_url
from spica_async.journal.port import (
    Fact,
    Journal,
    JournalBusyError,
    JournalConflictError,
    JournalDamagedError,
    JournalError,
    JournalFullError,
    JournalUnavailableError,
    JournalVersionError,
    Lease,
    LeaseLostError,
    NewSweep,
    RecordedFact,
    SweepExistsError,
    SweepRow,
    SweepTakenError,
    SweepUnknownError,
)

__all__ = [
    "Fact",
    "Journal",
    "JournalBusyError",
    "JournalConflictError",
    "JournalDamagedError",
    "JournalError",
    "JournalFullError",
    "JournalUnavailableError",
    "JournalVersionError",
    "Lease",
    "LeaseLostError",
    "NewSweep",
    "RecordedFact",
    "SweepExistsError",
    "SweepRow",
    "SweepTakenError",
    "SweepUnknownError",
    "journal_url",
]

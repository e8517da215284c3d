"""The durable record of every sweep: what a coordinator that starts again goes on from."""

from spica_async.journal.port import (
    Fact,
    Journal,
    JournalConflictError,
    Lease,
    LeaseLostError,
    NewSweep,
    Place,
    RecentEvents,
    RecordedEvent,
    RecordedFact,
    StatusUpdate,
    SweepExistsError,
    SweepRow,
    SweepTakenError,
    SweepUnknownError,
)

__all__ = [
    "Fact",
    "Journal",
    "JournalConflictError",
    "Lease",
    "LeaseLostError",
    "NewSweep",
    "Place",
    "RecentEvents",
    "RecordedEvent",
    "RecordedFact",
    "StatusUpdate",
    "SweepExistsError",
    "SweepRow",
    "SweepTakenError",
    "SweepUnknownError",
]

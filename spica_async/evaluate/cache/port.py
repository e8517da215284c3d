"""What a cache of results has to do, wherever it keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from schemas.messages import Measurement

MAX_KEPT: Final = 8
"""How many measurements of a noisy sample are kept, the latest ones."""


@dataclass(frozen=True, slots=True)
class Cached:
    """What is known of a question.

    Attributes:
        measurement: The answer.
        measured: How often the question was measured.
        worker: Who took this measurement.
        measured_at: When it was kept, in seconds since the epoch.
        others: What else is kept of a noisy sample.
    """

    measurement: Measurement
    measured: int
    worker: str
    measured_at: float
    others: tuple[Measurement, ...] = ()


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What a cache holds.

    Attributes:
        entries: Questions with an answer.
        measurements: That are kept of them, up to `MAX_KEPT` of a noisy one.
        noisy: Entries whose measurements come out otherwise each time.
        bytes: That the measurements take, without what the database adds.
        hits: How often an entry was the answer.
        oldest_use: When the entry was used that was not used for longest, in seconds since the
            epoch; None where there is no entry. Having been measured is a use.
        newest_use: When any was used last, likewise.
    """

    entries: int = 0
    measurements: int = 0
    noisy: int = 0
    bytes: int = 0
    hits: int = 0
    oldest_use: float | None = None
    newest_use: float | None = None


class ResultCache(Protocol):
    """Measurements by `cache_key`, as a sweep uses them."""

    async def get(self, key: str) -> Cached | None:
        """What was measured: of several, the one whose output throughput is their lower median.

        So one outlier is not believed for ever.
        """

    async def put(self, key: str, measurement: Measurement, *, worker: str, noisy: bool) -> None:
        """Keep what was measured; nothing happens where that `is_cacheable` not.

        Args:
            key: Of the question.
            measurement: The answer.
            worker: Who took it.
            noisy: Whether the sample `is_noisy`: then it is kept beside those before it, up to
                `MAX_KEPT`, and else in place of the one before it.
        """


class NoCache:
    """Knows nothing and keeps nothing; see `ResultCache`."""

    async def get(self, key: str) -> Cached | None:  # noqa: ARG002  # the port's
        """See `ResultCache.get`."""
        return None

    async def put(self, key: str, measurement: Measurement, *, worker: str, noisy: bool) -> None:
        """See `ResultCache.put`."""


def is_cacheable(measurement: Measurement) -> bool:
    """Whether a measurement says something of its question, and not of the moment.

    A time limit, a death, or a trace that was out of reach may not be there the next time.
    """
    return measurement.outcome == "feasible" or (
        measurement.outcome == "unsupported" and measurement.cause == "engine_unsupported"
    )

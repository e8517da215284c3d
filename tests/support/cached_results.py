"""Measurements to keep in a cache of results, and a way to let them grow old."""

from __future__ import annotations

from sqlalchemy import update

from schemas.messages import Measurement
from spica_async.evaluate.cache.port import ResultCache
from spica_async.evaluate.cache.sql import SqlResultCache
from spica_async.evaluate.cache.tables import entries_table


def measured(throughput: float = 1.0) -> Measurement:
    report = {"output_throughput_tok_s": throughput, "mean_ttft_ms": 0.1 + throughput}
    return Measurement(outcome="feasible", report=report, build_seconds=0.25, replay_seconds=1.5)


REFUSED = Measurement(outcome="unsupported", cause="engine_unsupported", detail="nö ☃")


async def put(
    cache: ResultCache, key: str, throughput: float = 1.0, *, noisy: bool = False
) -> None:
    await cache.put(key, measured(throughput), worker=f"worker {throughput:g}", noisy=noisy)


async def kept(cache: ResultCache, key: str) -> float | None:
    """The throughput that a cache answers with."""
    cached = await cache.get(key)
    if cached is None or cached.measurement.report is None:
        return None
    assert cached.measurement == measured(cached.measurement.report["output_throughput_tok_s"])
    return cached.measurement.report["output_throughput_tok_s"]


async def keys(cache: ResultCache, *asked: str) -> str:
    """Those of the keys that a cache has."""
    return "".join([key for key in asked if await cache.get(key)])


async def grow_old(cache: SqlResultCache, key: str, seconds: float) -> None:
    """Have an entry not used for so long."""
    older = (
        update(entries_table)
        .where(entries_table.c.key == key)
        .values(used_at=entries_table.c.used_at - seconds)
    )
    assert await cache.database.write(lambda connection: connection.execute(older).rowcount) == 1

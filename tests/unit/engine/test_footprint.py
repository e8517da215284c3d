from __future__ import annotations

from typing import Any

import pytest
from support.engine_samples import synthetic

from schemas.messages import Load, SyntheticLoad, TraceLoad
from spica_async.engine.footprint import estimate_bytes

MIB = 2**20


def _trace(requests: int, tokens: int, concurrency: int | None) -> TraceLoad:
    return TraceLoad(
        path="t",
        sha256="0" * 64,
        size_bytes=1,
        requests=requests,
        total_tokens=requests * tokens,
        concurrency=concurrency,
    )


# Resident set sizes of finished replays, in MiB.
MEASURED: list[tuple[Load, int]] = [
    (synthetic(requests=5_000, isl=1024, osl=16, concurrency=64), 425),
    (synthetic(requests=20_000, isl=128, osl=8, concurrency=64), 423),
    (synthetic(requests=5_000, isl=8192, osl=8, concurrency=64), 563),
    (synthetic(requests=5_000, isl=1024, osl=2000, concurrency=64), 426),
    (synthetic(requests=200_000, isl=16, osl=4, concurrency=64), 501),
    (synthetic(requests=40_000, isl=8192, osl=8, concurrency=64), 1670),
    (synthetic(requests=10_000, isl=8192, osl=8, concurrency=64, turns_per_session=4), 605),
    (_trace(40_000, 8200, concurrency=64), 634),
    (_trace(40_000, 8200, concurrency=None), 1706),
    (_trace(20_000, 4196, concurrency=None), 888),
]


@pytest.mark.parametrize(("load", "measured"), MEASURED)
def test_the_estimate_is_not_below_what_was_measured_nor_above_three_times(
    load: Load, measured: int
) -> None:
    assert measured * MIB <= estimate_bytes(load) <= 3 * measured * MIB


@pytest.mark.parametrize(
    "more", [{"requests": 400}, {"isl": 2048}, {"osl": 256}, {"turns_per_session": 2}]
)
def test_more_tokens_or_requests_need_more(more: dict[str, Any]) -> None:
    few = {"isl": 1024, "osl": 128, "requests": 200, "concurrency": 1, "turns_per_session": 2}
    many = {**few, "turns_per_session": 4} if "turns_per_session" in more else {**few, **more}
    assert estimate_bytes(SyntheticLoad(**many)) > estimate_bytes(SyntheticLoad(**few))

"""Loads that a slot has no memory for."""

from __future__ import annotations

import pytest

from schemas.messages import SyntheticLoad
from spica_async.processes.memory import mebibytes
from workers.memory import MemoryGuard

LOAD = SyntheticLoad(isl=100, osl=10, requests=4, concurrency=2)


@pytest.mark.parametrize(("limit", "refused"), [(3999, True), (4000, False)])
def test_the_estimate_must_fit(limit: int, *, refused: bool) -> None:
    guard = MemoryGuard(limit, lambda load: 1000 * load.requests)
    refusal = guard.refusal(LOAD)
    assert (refusal is not None) == refused
    if refusal is not None:
        assert (refusal.outcome, refusal.cause) == ("failed", "resource_limited")


def test_the_engines_own_estimate_is_the_default() -> None:
    refusal = MemoryGuard(300 * 2**20).refusal(LOAD)
    assert refusal is not None
    assert refusal.detail == (
        "4 requests with 440 tokens need about 512 MiB of memory, a slot here has 300 MiB"
    )


def test_numbers_too_long_to_be_written_are_refused_as_well() -> None:
    endless = SyntheticLoad(isl=10**4000, osl=1, requests=10**4000, concurrency=1)
    refusal = MemoryGuard(2**30).refusal(endless)
    assert refusal is not None
    assert str(refusal.detail).startswith("over 1,000,000,000,000,000,000 requests")


def test_mebibytes_are_for_people() -> None:
    assert mebibytes(1536 * 2**20) == "1,536 MiB"

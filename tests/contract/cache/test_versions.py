"""Caches of older versions, and of none."""

from __future__ import annotations

import pytest
from support.cached_results import kept, put
from support.tables import look_at

from spica_async.evaluate.cache import sql as sql_module
from spica_async.evaluate.cache.sql import SqlResultCache
from spica_async.evaluate.cache.tables import STEPS, metadata, version_table
from spica_async.storage.opening import version_of

NEWER = (*STEPS, ("ALTER TABLE result_cache_entries ADD COLUMN colour TEXT",))
"""What a later version might make of today's."""


async def test_the_steps_lead_to_the_tables_that_the_program_uses(empty_url: str) -> None:
    async with SqlResultCache.open(empty_url) as cache:
        assert await cache.database.read(look_at) == {
            name: [(column.name, column.nullable, column.primary_key) for column in table.columns]
            for name, table in metadata.tables.items()
        }


async def test_an_older_one_is_brought_up_to_date_with_nothing_lost(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SqlResultCache.open(empty_url) as cache:
        await put(cache, "k")
    monkeypatch.setattr(sql_module, "STEPS", NEWER)
    for _ in range(2):
        async with SqlResultCache.open(empty_url) as cache:
            assert await kept(cache, "k") == 1.0
            version = await cache.database.read(lambda found: version_of(found, version_table))
            assert version == len(NEWER)

"""What sweeps have measured, kept to answer later sweeps that ask the same."""

from spica_async.evaluate.cache.key import cache_key, is_noisy
from spica_async.evaluate.cache.opening import cache_place, opened, user_cache_file
from spica_async.evaluate.cache.port import (
    Cached,
    CacheStats,
    NoCache,
    ResultCache,
    is_cacheable,
)

__all__ = [
    "CacheStats",
    "Cached",
    "NoCache",
    "ResultCache",
    "cache_key",
    "cache_place",
    "is_cacheable",
    "is_noisy",
    "opened",
    "user_cache_file",
]

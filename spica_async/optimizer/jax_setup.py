"""How JAX is set up in an optimizer process.

Imported in the optimizer process only.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import jax

from spica_async.optimizer.compile_clock import CompileClock
from spica_async.places import user_cache_folder


def set_up_jax() -> CompileClock:
    """Switches JAX to 64 bits and a cache of compiled programs on disk; returns a running clock."""
    # Vizier's kernels lose their footing in 32 bits.
    jax.config.update("jax_enable_x64", True)  # noqa: FBT003 - The signature is JAX's.
    if (folder := _cache_folder()) is not None:
        jax.config.update("jax_compilation_cache_dir", str(folder))
        # Small programs are many here, so each one is worth keeping.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    clock = CompileClock()
    jax.monitoring.register_event_duration_secs_listener(clock.listen)
    return clock


def _cache_folder() -> Path | None:
    """Returns the folder for programs of these versions, or None if it cannot be had."""
    versions = (f"{name}-{importlib.metadata.version(name)}" for name in ("jax", "google-vizier"))
    folder = user_cache_folder() / "jax" / "_".join(versions)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None  # Without it the next process compiles again, and that is all.
    return folder

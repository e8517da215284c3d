"""The samplers that a configuration can name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from schemas.config import OptimizerProfile, OptimizerSettings
from spica_async.sampling.port import Sampler
from spica_async.sampling.process import FAST_DESIGNER, SEEDS, SamplerProcess
from spica_async.sampling.random_sampler import RandomSampler
from spica_async.sampling.types import Study

VIZIER_DEFAULT_DESIGNER = "spica_async.sampling.designer:VizierDefaultDesigner"

# The designer of each profile that has one, and its seeds: Vizier by itself makes one.
_DESIGNERS: dict[OptimizerProfile, tuple[str, int]] = {
    "fast": (FAST_DESIGNER, SEEDS),
    "vizier_default": (VIZIER_DEFAULT_DESIGNER, 1),
}


@asynccontextmanager
async def open_sampler(
    study: Study,
    settings: OptimizerSettings,
    *,
    suggest_timeout_seconds: float,
    log_path: Path | None = None,
) -> AsyncIterator[Sampler]:
    """Yields the sampler of a study that the settings ask for.

    Args:
        study: The branch's parameters and objectives.
        settings: Which profile, and how large its process may grow.
        suggest_timeout_seconds: Longest wait for the answer to one ask, in seconds.
        log_path: Where the stderr of its process is appended; nowhere if None.

    Raises:
        ValueError: If the study cannot be searched.
        OSError: If the operating system cannot start a process.
    """
    if settings.profile == "random":
        yield RandomSampler(study)
        return
    designer, seeds = _DESIGNERS[settings.profile]
    async with SamplerProcess(
        study,
        suggest_timeout_seconds=suggest_timeout_seconds,
        designer=designer,
        seeds=seeds,
        max_memory_mb=settings.max_memory_mb,
        log_path=log_path,
    ) as sampler:
        yield sampler

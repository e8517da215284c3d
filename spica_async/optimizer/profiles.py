"""The samplers that a configuration can name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from schemas.config import OptimizerProfile, OptimizerSettings
from spica_async.optimizer.port import Sampler
from spica_async.optimizer.process import FAST_DESIGNER, SamplerProcess
from spica_async.optimizer.random_sampler import RandomSampler
from spica_async.optimizer.types import Study

VIZIER_DEFAULT_DESIGNER = "spica_async.optimizer.designer:VizierDefaultDesigner"

_DESIGNERS: dict[OptimizerProfile, str] = {
    "fast": FAST_DESIGNER,
    "vizier_default": VIZIER_DEFAULT_DESIGNER,
}
_FEWEST_SEEDS = 8
_MOST_SEEDS = 16


def seed_count(study: Study, profile: OptimizerProfile) -> int:
    """Returns how many trials are spread over the space before a model looks for the best.

    Two for each parameter, from 8 to 16: with fewer, on spaces with many hills, the model climbs
    one that is not the highest and stays there. Vizier by itself makes one.
    """
    if profile == "vizier_default":
        return 1
    return min(max(2 * len(study.parameters), _FEWEST_SEEDS), _MOST_SEEDS)


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
    async with SamplerProcess(
        study,
        suggest_timeout_seconds=suggest_timeout_seconds,
        designer=_DESIGNERS[settings.profile],
        seeds=seed_count(study, settings.profile),
        max_memory_mb=settings.max_memory_mb,
        log_path=log_path,
    ) as sampler:
        yield sampler

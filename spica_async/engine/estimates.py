"""How long single steps of a worker take, by AI Configurator's analytical model.

The estimates rank what to try first; what counts is measured by replays. They come from the very
timing model and performance data that a replay of the same sample loads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from schemas.search_space import Role
from spica_async.engine import runtime
from spica_async.engine.config import SampleView
from spica_async.engine.launch import launch_config
from spica_async.engine.refusals import one_line

_SDK: Final = "aisimulate_core.sdk"


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps to time, alike for all workers; a batch is that of one attention rank.

    Attributes:
        isl: input tokens of a request.
        cached: of these, the tokens that are found in the prefix cache.
        context: tokens of a request before the one that a decode step makes.
        prefill_batches: requests whose whole prompts are prefilled in one step.
        decode_batches: requests that one step makes a token for.
    """

    isl: int
    cached: int
    context: int
    prefill_batches: tuple[int, ...]
    decode_batches: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Milliseconds of each of the steps that were asked for, in their order."""

    prefill_ms: tuple[float, ...]
    decode_ms: tuple[float, ...]


def step_times(workers: Iterable[tuple[SampleView, Role]], steps: Steps) -> list[StepTimes | str]:
    """What steps of some workers take, without any scheduler around them.

    Performance data is loaded once a call for each backend (about a second); each worker takes 5
    to 200 ms more, whatever the number of steps.

    Args:
        workers: flat samples, each with the role of it to time; its shape and backend matter alone.
        steps: what to time.

    Returns:
        For each worker its times, or in one line why the model has none.

    Raises:
        KeyError: if a sample lacks a field of its role.
    """
    estimator = runtime.load(_SDK).RustForwardPassPerfModel
    # Models share the data that they loaded as long as one of them is there.
    models: list[Any] = []
    found: list[StepTimes | str] = []
    for sample, role in workers:
        timing = launch_config(sample, role)["engine"]["timing_model"]["config"]
        try:
            models.append(estimator.best_available(timing))
            found.append(_times(models[-1], steps))
        except BaseException as error:
            if not runtime.is_fault(error):
                raise
            found.append(one_line(error))
    return found


def _times(model: Any, steps: Steps) -> StepTimes | str:
    times = StepTimes(
        tuple(
            model.predict_prefill_latency(batch, steps.isl, steps.cached)
            for batch in steps.prefill_batches
        ),
        tuple(
            model.predict_decode_latency_total(batch, batch * steps.context)
            for batch in steps.decode_batches
        ),
    )
    if all(math.isfinite(ms) and ms > 0 for ms in (*times.prefill_ms, *times.decode_ms)):
        return times
    return f"step times that are no times: {times}"

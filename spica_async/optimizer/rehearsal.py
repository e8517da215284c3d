"""What an optimizer process compiles ahead, while the trials of its last ask are measured."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from spica_async.optimizer.quasi_random import draw
from spica_async.optimizer.tiers import LARGEST_FITTED_TIER, fitted_count, rows_for
from spica_async.optimizer.types import Study, Trial
from spica_async.optimizer.wire import AskRequest

_NEARLY_FULL = 7 / 8
"""The part of a tier from which on the next one is compiled, too.

Ours: 8 trials of the smallest tier are left then, and a compilation is mostly over before they are
measured. `benchmarks/optimizer.py` shows how long asks wait for compiling.
"""

_MADE_UP = 8


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Programs that are compiled together.

    Attributes:
        rows: padded rows of the tier that they are for.
        observed: trials observed, for programs of the labels; others are the same for any number.
        explores: which acquisition function they belong to; None for those of the labels.
    """

    rows: int
    observed: int
    explores: bool | None


def rehearsals_after(request: AskRequest) -> Iterator[Rehearsal]:
    """Yields what the asks after `request` may need, the most urgent first.

    The next ask is taken to be for as many suggestions. By then all trials have been observed, or,
    if some were pending at this ask already, any part of them.
    """
    made = request.first + request.count
    observed = fitted_count(made, request.count)
    rows = rows_for(observed + request.count)
    for explores in (False, True):
        yield Rehearsal(rows, 0, explores)
    fewest = len(request.history) + 1 if request.pending else observed
    for count in range(observed, min(observed, fewest) - 1, -1):
        yield Rehearsal(rows, count, None)
    if observed + request.count > _NEARLY_FULL * rows and rows < LARGEST_FITTED_TIER:
        for explores in (False, True):
            yield Rehearsal(2 * rows, 0, explores)


def made_up_request(study: Study) -> AskRequest:
    """Returns an ask for one suggestion after a few trials with values of no meaning."""
    history = tuple(
        Trial(
            number,
            draw(study, number),
            {objective.name: math.sin(number + i) for i, objective in enumerate(study.objectives)},
        )
        for number in range(_MADE_UP)
    )
    return AskRequest(_MADE_UP, 1, history, ())

"""What passes between the sampler's proxy and its optimizer process, and how.

Each message is a frame of `childproc`. The proxy sends pickles, first the `Study` and then one
`AskRequest` at a time; the optimizer answers each request with one JSON object, so that what a
broken process writes is parsed and never executed:

    {"assignments": [{name: value, ...}, ...]}
    {"fault": "one line", "detail": "the traceback"}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from spica_async.sampling.types import Study, Suggestion, Trial
from spica_async.space.parameters import Assignment

MAX_ANSWER_BYTES = 16 * 2**20
"""A longer answer is no answer: thousands of suggestions fit into this."""


@dataclass(frozen=True, slots=True)
class AskRequest:
    """One ask with everything that its answer may depend on, the study apart.

    The whole history goes along each time, so the optimizer process holds nothing that is lost
    with it.

    Attributes:
        first: Number of the first suggestion to be made; it names the ask.
        count: How many suggestions to make.
        history: The trials told so far, by ascending number.
        pending: The suggestions not told yet, by ascending number.
    """

    first: int
    count: int
    history: tuple[Trial, ...]
    pending: tuple[Suggestion, ...]


class Designer(Protocol):
    """What runs in the optimizer process."""

    def suggest(self, request: AskRequest) -> list[Assignment]:
        """Returns `request.count` assignments, as a function of study and request alone."""


class DesignerFactory(Protocol):
    """Builds the designer of a study; found by its import path, `module:name`."""

    def __call__(self, study: Study) -> Designer:
        """Returns the designer."""

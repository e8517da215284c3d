"""What passes between the sampler's proxy and its optimizer process, and how.

Each message is a frame of `processes.child` that holds JSON. The proxy sends an `Opening`, and then
requests, of which one `AskRequest` at a time is outstanding. The optimizer answers with objects:

    {"assignments": [{name: value, ...}, ...], "costs": {name: number, ...}}
    {"prepared": true}
    {"fault": "one line", "detail": "the traceback"}

An ask has the first answer or the last. A `PrepareRequest` has the second, unless an ask follows
it before everything is compiled. `costs` are the fields of `Costs`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pydantic import TypeAdapter

from spica_async.optimizer.compile_clock import CompileClock
from spica_async.optimizer.types import Study, Suggestion, Trial
from spica_async.space.parameters import Assignment

MAX_ANSWER_BYTES = 16 * 2**20
"""A longer answer is no answer: thousands of suggestions fit into this."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What a process is sent first.

    Attributes:
        study: What it is to search.
        started: When it was started, as a monotonic time in seconds.
    """

    study: Study
    started: float


@dataclass(frozen=True, slots=True)
class AskRequest:
    """One ask with everything that its answer may depend on, the study apart.

    The whole history goes along each time, so the optimizer process holds nothing that is lost
    with it.

    Attributes:
        first: Number of the first suggestion to be made; it names the ask.
        count: How many suggestions to make.
        history: The trials observed so far, by ascending number.
        pending: The suggestions not observed yet, by ascending number.
        has_news: Whether anything was observed after the ask before this one.
    """

    first: int
    count: int
    history: tuple[Trial, ...]
    pending: tuple[Suggestion, ...]
    has_news: bool = True


@dataclass(frozen=True, slots=True)
class PrepareRequest:
    """Says which ask was answered without it, so that it can prepare for the next."""

    answered: AskRequest


@dataclass(frozen=True, slots=True)
class Costs:
    """What an optimizer process has cost when it answers an ask.

    Attributes:
        start_seconds: From its start until it could take in asks.
        compile_seconds: Tracing, lowering and compiling since its start.
        compile_wait_seconds: The part of it for which this ask waited.
        memory_mb: Resident memory now, in MiB.
    """

    start_seconds: float
    compile_seconds: float
    compile_wait_seconds: float
    memory_mb: float


_OPENING = TypeAdapter(Opening)
# An ask has what a preparation has not, and the other way round.
_REQUEST: TypeAdapter[AskRequest | PrepareRequest] = TypeAdapter(AskRequest | PrepareRequest)


def encode(message: Opening | AskRequest | PrepareRequest) -> bytes:
    """What the proxy sends, as one frame holds it."""
    if isinstance(message, Opening):
        return _OPENING.dump_json(message)
    return _REQUEST.dump_json(message)


def decode_opening(payload: bytes) -> Opening:
    """The first message of the proxy."""
    return _OPENING.validate_json(payload)


def decode_request(payload: bytes) -> AskRequest | PrepareRequest:
    """Any later message of the proxy."""
    return _REQUEST.validate_json(payload)


class Designer(Protocol):
    """What runs in the optimizer process."""

    @property
    def clock(self) -> CompileClock:
        """What counts the time spent on compiling."""

    def suggest(self, request: AskRequest) -> list[Assignment]:
        """Returns `request.count` assignments, as a function of study and request alone."""

    def prepare(self, request: AskRequest, interrupted: Callable[[], bool]) -> None:
        """Compiles ahead for what may be asked after `request`, until done or interrupted."""


class DesignerFactory(Protocol):
    """Builds the designer of a study; found by its import path, `module:name`."""

    def __call__(self, study: Study) -> Designer:
        """Returns the designer."""

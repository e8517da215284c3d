"""Makes up a bursty trace of conversations from a seed."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypedDict

from spica_async.traces.check import BLOCK_SIZE

# The shape of the load. With the defaults of `SynthConfig`, lengths, reuse and the variance of
# arrivals in 10 s windows come close to Mooncake's published conversation trace.
_INPUT_SIGMA: Final = 1.05  # Of the logarithm of a length.
_OUTPUT_SIGMA: Final = 0.7
_CALM_SECONDS: Final = 15.0  # Mean lengths of the two phases.
_BURST_SECONDS: Final = 5.0
_WAVE_AMPLITUDE: Final = 0.2  # One slow wave over the whole trace: the day in small.
_OPEN_CONVERSATIONS: Final = 64  # Those that may go on; older ones have ended.
# A next turn comes after its answer was generated and read.
_READING_MS: Final = 2000
_GENERATION_MS_PER_TOKEN: Final = 20
_LONGEST_SECONDS: Final = 31 * 24 * 3600
# All arrivals are in memory at once, and the ids of one input.
_MOST_REQUESTS: Final = 10_000_000
_LONGEST_INPUT: Final = 100_000_000
_GREATEST_BURST: Final = 1_000_000_000
# Blocks of each system prompt; the first is the most used.
_SYSTEM_PROMPT_BLOCKS: Final = (1, 2, 1, 3)
_SYSTEM_PROMPT_WEIGHTS: Final = (8, 4, 2, 1)


class TraceLine(TypedDict):
    """One request: arrival in ms, lengths in tokens, one hash id per 512 input tokens."""

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthConfig:
    """What a synthetic trace is like.

    Attributes:
        seed: equal seeds, with the other fields equal, give equal traces.
        requests: how many.
        duration_seconds: in which all of them arrive.
        mean_input_length: tokens, before `max_input_length` cuts the longest.
        mean_output_length: tokens, likewise.
        max_input_length: tokens of the longest input.
        max_output_length: tokens of the longest output.
        burst_factor: rate in a burst over the rate in a calm phase; 1 makes all phases alike.
        prefix_sharing: share of requests that go on with an earlier conversation, where one is
            open and short enough, and so repeat its input as a prefix. With 0 nothing is shared;
            otherwise conversations start with one of a few system prompts.

    Raises:
        ValueError: if a field is out of its range; the message names field and range.
    """

    seed: int = 1
    requests: int = 1000
    duration_seconds: float = 600.0
    mean_input_length: float = 12_000.0
    mean_output_length: float = 350.0
    max_input_length: int = 120_000
    max_output_length: int = 2_000
    burst_factor: float = 2.0
    prefix_sharing: float = 0.4

    def __post_init__(self) -> None:
        """Refuse what no trace can be made of."""
        # Random takes the absolute value of a seed: a negative one would repeat another's trace.
        _require("seed", self.seed, low=0)
        _require("requests", self.requests, low=1, high=_MOST_REQUESTS)
        _require("duration_seconds", self.duration_seconds, low=1, high=_LONGEST_SECONDS)
        _require("max_input_length", self.max_input_length, low=1, high=_LONGEST_INPUT)
        _require("max_output_length", self.max_output_length, low=1)
        _require("mean_input_length", self.mean_input_length, low=1, high=self.max_input_length)
        _require("mean_output_length", self.mean_output_length, low=1, high=self.max_output_length)
        _require("burst_factor", self.burst_factor, low=1, high=_GREATEST_BURST)
        _require("prefix_sharing", self.prefix_sharing, low=0, high=1)


def synthesize(config: SynthConfig) -> Iterator[TraceLine]:
    """Yield the requests in order of arrival, the first at 0.

    Each aspect draws from a stream of its own: another burst factor, say, moves the arrivals and
    leaves the sequence of lengths as it was.
    """
    lengths = _stream(config.seed, "lengths")
    conversations = _Conversations(_stream(config.seed, "conversations"), config.prefix_sharing)
    for timestamp in _arrivals(config):
        input_length = _log_normal(
            lengths, config.mean_input_length, _INPUT_SIGMA, config.max_input_length
        )
        output_length = _log_normal(
            lengths, config.mean_output_length, _OUTPUT_SIGMA, config.max_output_length
        )
        yield TraceLine(
            timestamp=timestamp,
            input_length=input_length,
            output_length=output_length,
            hash_ids=conversations.hash_ids(timestamp, input_length, output_length),
        )


def write_trace(path: Path, config: SynthConfig) -> None:
    """Write the trace as JSONL; an existing file is replaced.

    Raises:
        OSError: if the file cannot be written.
    """
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for line in synthesize(config):
            file.write(json.dumps(line) + "\n")


def _stream(seed: int, purpose: str) -> random.Random:
    # A text is seeded through SHA-512, on every platform alike.
    return random.Random(f"{purpose} {seed}")  # noqa: S311 - no secret hangs on it.


def _require(name: str, value: float, *, low: float, high: float = math.inf) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        allowed = f"{low} or more" if math.isinf(high) else f"{low} to {high}"
        raise ValueError(f"{name}: {value} is not allowed; allowed: {allowed}")


def _log_normal(stream: random.Random, mean: float, sigma: float, limit: int) -> int:
    drawn = stream.lognormvariate(math.log(mean) - sigma**2 / 2, sigma)
    return max(1, min(limit, round(drawn)))


def _arrivals(config: SynthConfig) -> list[int]:
    """Ascending arrival times in ms, the first 0.

    A Markov-modulated Poisson process under a slow wave, conditioned on the number of its
    arrivals: given the rate over time, those are independent draws from it.
    """
    stream = _stream(config.seed, "arrivals")
    duration = config.duration_seconds
    phases = _phases(stream, config)
    expected = list(itertools.accumulate((end - start) * rate for start, end, rate in phases))
    moments: list[float] = []
    while len(moments) < config.requests:
        ((start, end, _),) = stream.choices(phases, cum_weights=expected)
        moment = start + stream.random() * (end - start)
        wave = 1 + _WAVE_AMPLITUDE * math.sin(2 * math.pi * moment / duration)
        if stream.random() * (1 + _WAVE_AMPLITUDE) < wave:
            moments.append(moment)
    moments.sort()
    return [round(1000 * (moment - moments[0])) for moment in moments]


def _phases(stream: random.Random, config: SynthConfig) -> list[tuple[float, float, float]]:
    """Start and end in seconds and relative rate of calm and burst phases in turn."""
    phases = []
    kinds = itertools.cycle([(_CALM_SECONDS, 1.0), (_BURST_SECONDS, config.burst_factor)])
    start = 0.0
    while start < config.duration_seconds:
        mean_seconds, rate = next(kinds)
        end = min(start + stream.expovariate(1 / mean_seconds), config.duration_seconds)
        phases.append((start, end, rate))
        start = end
    return phases


@dataclass(frozen=True, slots=True)
class _Conversation:
    """What a next turn repeats, and when and with how long an input one may come."""

    ids: list[int]
    tokens: int
    ready_ms: float


class _Conversations:
    """Gives hash ids to requests: those of the conversation they go on with, then new ones."""

    def __init__(self, stream: random.Random, sharing: float) -> None:
        self._stream = stream
        self._sharing = sharing
        self._new_ids = itertools.count()
        self._open: deque[_Conversation] = deque(maxlen=_OPEN_CONVERSATIONS)
        self._system_prompts = [
            list(itertools.islice(self._new_ids, blocks)) for blocks in _SYSTEM_PROMPT_BLOCKS
        ]

    def hash_ids(self, timestamp: int, input_length: int, output_length: int) -> list[int]:
        """The ids of the next request, one per block of its input."""
        shared = self._shared_ids(timestamp, input_length)
        blocks = math.ceil(input_length / BLOCK_SIZE)
        ids = shared + list(itertools.islice(self._new_ids, blocks - len(shared)))
        self._open.append(
            _Conversation(
                # A block that the next turn fills up gets another content, so another id.
                ids=ids[: input_length // BLOCK_SIZE],
                tokens=input_length + output_length,
                ready_ms=timestamp + _READING_MS + output_length * _GENERATION_MS_PER_TOKEN,
            )
        )
        return ids

    def _shared_ids(self, timestamp: int, input_length: int) -> list[int]:
        if not self._sharing:
            return []
        if self._stream.random() < self._sharing:
            ready = [
                one for one in self._open if one.ready_ms <= timestamp and one.tokens < input_length
            ]
            if ready:
                # A request that repeats a prefix repeats most of its input, as in recorded traces.
                earlier = max(ready, key=lambda one: one.tokens)
                self._open.remove(earlier)
                return earlier.ids
        (prompt,) = self._stream.choices(self._system_prompts, _SYSTEM_PROMPT_WEIGHTS)
        # At least one token stays for the user's own words.
        return prompt[: (input_length - 1) // BLOCK_SIZE]

"""Seeded quasi-random assignments: the first trials of a study, and stand-ins for an optimizer."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Iterator

from spica_async.optimizer.assignments import centre
from spica_async.optimizer.seeding import derive_seed
from spica_async.optimizer.types import Study, Suggestion
from spica_async.space.parameters import Assignment, FloatParameter, Parameter, ParameterValue

_COORDINATE_BITS = 53


def draw_spread(study: Study, numbers: range) -> list[Suggestion]:
    """Returns suggestions that spread over the space: number 0 is its centre, others are drawn."""
    return [
        Suggestion(number, draw(study, number) if number else centre(study.parameters))
        for number in numbers
    ]


def draw(study: Study, number: int) -> Assignment:
    """Returns point `number` (from 0) of the study's own scrambled Halton sequence.

    A float is uniform over its range; a listed value is uniform over the list, so log-spaced
    numbers are drawn on their log scale. The point depends on the study's seed, branch and
    parameters and on `number`, so points of successive numbers fill the space evenly whichever
    process draws them.
    """
    scrambles = _scrambles(derive_seed(study, "quasi-random"), len(study.parameters))
    return {
        parameter.name: _value_at(parameter, _coordinate(number, base, scramble))
        for parameter, (base, scramble) in zip(study.parameters, scrambles, strict=True)
    }


@functools.lru_cache(maxsize=16)
def _scrambles(seed: int, dimensions: int) -> list[tuple[int, list[list[int]]]]:
    """Returns each dimension's base, a prime, with a permutation of its digits for each place."""
    rng = random.Random(seed)  # noqa: S311 - Nothing secret is drawn.
    scrambles: list[tuple[int, list[list[int]]]] = []
    for base in itertools.islice(_primes(), dimensions):
        places = math.ceil(_COORDINATE_BITS / math.log2(base))
        scrambles.append((base, [rng.sample(range(base), base) for _ in range(places)]))
    return scrambles


def _coordinate(number: int, base: int, scramble: list[list[int]]) -> float:
    """Returns the digits of `number`, each permuted, as a fraction in [0, 1).

    The lowest digit counts the most. Zeros in front of the highest are permuted as well.
    """
    fraction = 0
    for permutation in scramble:
        number, digit = divmod(number, base)
        fraction = fraction * base + permutation[digit]
    # The quotient of two integers is rounded once, and may be rounded up to one.
    coordinate: float = fraction / base ** len(scramble)
    return min(coordinate, math.nextafter(1.0, 0.0))


def _primes() -> Iterator[int]:
    found: list[int] = []
    for number in itertools.count(2):
        if all(number % prime for prime in found):
            found.append(number)
            yield number


def _value_at(parameter: Parameter, coordinate: float) -> ParameterValue:
    """Maps a coordinate in [0, 1) to a value."""
    if isinstance(parameter, FloatParameter):
        value = parameter.low + coordinate * (parameter.high - parameter.low)
        return min(value, parameter.high)  # The sum may round up past the bound.
    return parameter.values[int(coordinate * len(parameter.values))]

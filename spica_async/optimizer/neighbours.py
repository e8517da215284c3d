"""Assignments near another one, for when the optimizer proposes what is known already.

On a small space an optimizer comes back to the best it knows time and again, though the samples
beside it are the ones that could still be better.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Final

from spica_async.space.parameters import (
    Assignment,
    DiscreteParameter,
    FloatParameter,
    Parameter,
    ParameterValue,
)

# Ours: a step that leaves the basin of a kernel as wide as the range is seldom worth a replay.
# `benchmarks/scheduling.py` measures what neighbours with this step find.
_STEP: Final = 0.15
_FLOAT_STEPS: Final = 4
_WIDER_TRIES: Final = 64


def neighbours(
    parameters: Sequence[Parameter], assignment: Assignment, rng: random.Random
) -> Iterator[Assignment]:
    """Assignments in which one parameter is a step away, then some with more and wider changes.

    A step leads a number of a list to the next smaller or larger one, a float about a seventh of
    its range away, and a label to any other. An assignment may come more than once.
    """
    steps = [
        (parameter.name, value)
        for parameter in parameters
        for value in _steps(parameter, assignment[parameter.name], rng)
    ]
    rng.shuffle(steps)
    for name, value in steps:
        yield assignment | {name: value}
    for number in range(_WIDER_TRIES):
        # The later, the farther away.
        changes = min(2 + number * len(parameters) // _WIDER_TRIES, len(parameters))
        changed = rng.sample(parameters, changes)
        yield assignment | {parameter.name: _any(parameter, rng) for parameter in changed}


def _steps(
    parameter: Parameter, value: ParameterValue, rng: random.Random
) -> Sequence[ParameterValue]:
    if isinstance(parameter, FloatParameter):
        spread = _STEP * (parameter.high - parameter.low)
        return [
            min(max(rng.gauss(float(value), spread), parameter.low), parameter.high)
            for _ in range(_FLOAT_STEPS)
        ]
    if isinstance(parameter, DiscreteParameter):
        at = parameter.values.index(value)
        return [*parameter.values[max(at - 1, 0) : at], *parameter.values[at + 1 : at + 2]]
    return [other for other in parameter.values if other != value]


def _any(parameter: Parameter, rng: random.Random) -> ParameterValue:
    if isinstance(parameter, FloatParameter):
        return rng.uniform(parameter.low, parameter.high)
    return rng.choice(parameter.values)

"""Assignments as values: which ones a study allows, and which one stands in its centre."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from spica_async.optimizer.types import Study
from spica_async.space.parameters import (
    Assignment,
    CategoricalParameter,
    DiscreteParameter,
    FloatParameter,
    Parameter,
    ParameterValue,
    first_value,
)


def check_study(study: Study) -> None:
    """Checks what an optimizer takes for granted.

    Raises:
        ValueError: If there is no parameter or no objective, if two of them share a name, if a
            range or list of choices is too short, out of order or not finite, if a default is not
            allowed by its parameter, or if log scaling is asked of a number that is not positive.
    """
    for what, names in (
        ("parameter", [parameter.name for parameter in study.parameters]),
        ("objective", [objective.name for objective in study.objectives]),
    ):
        if not names:
            raise ValueError(f"study {study.branch!r} has no {what}")
        if len(set(names)) < len(names):
            raise ValueError(f"study {study.branch!r} names a {what} twice: {names}")
    for parameter in study.parameters:
        _check_parameter(parameter)


def centre(parameters: Sequence[Parameter]) -> Assignment:
    """Returns the assignment to try first: each default, else the middle of the range or list."""
    return {parameter.name: first_value(parameter) for parameter in parameters}


def accept(parameters: Sequence[Parameter], raw: Mapping[str, object]) -> Assignment:
    """Returns `raw` as an assignment of exactly the listed values, in the order of `parameters`.

    Numbers may come as float or int: those of a discrete parameter become the listed number that
    equals them, those of a float parameter become a float.

    Raises:
        ValueError: If a parameter is missing or unknown, or a value is not allowed by its
            parameter (which includes every number that is not finite).
    """
    known = {parameter.name for parameter in parameters}
    if unknown := sorted(raw.keys() - known):
        raise ValueError(f"unknown parameters: {', '.join(unknown)}")
    if missing := sorted(known - raw.keys()):
        raise ValueError(f"missing parameters: {', '.join(missing)}")
    return {
        parameter.name: _accept_value(parameter, raw[parameter.name]) for parameter in parameters
    }


def _accept_value(parameter: Parameter, value: object) -> ParameterValue:
    if isinstance(parameter, CategoricalParameter):
        if isinstance(value, str) and value in parameter.values:
            return value
    # A bool is an int, but nobody lists one: it is a sign of confusion.
    elif isinstance(value, float | int) and not isinstance(value, bool):
        if isinstance(parameter, DiscreteParameter):
            for listed in parameter.values:
                if listed == value:
                    return listed
        elif parameter.low <= value <= parameter.high:
            return float(value)
    raise ValueError(f"parameter {parameter.name!r} cannot be {value!r}")


def _check_parameter(parameter: Parameter) -> None:
    if isinstance(parameter, FloatParameter):
        numbers: tuple[float | int, ...] = (parameter.low, parameter.high)
    elif isinstance(parameter, DiscreteParameter):
        numbers = parameter.values
        if parameter.log and min(numbers, default=1) <= 0:
            raise ValueError(f"parameter {parameter.name!r} cannot scale {numbers} by their logs")
    else:
        numbers = tuple(range(len(parameter.values)))
        if len(set(parameter.values)) < len(parameter.values):
            raise ValueError(f"parameter {parameter.name!r} lists a choice twice")
    if (
        len(numbers) < 2
        or not all(math.isfinite(number) for number in numbers)
        or any(a >= b for a, b in itertools.pairwise(numbers))
    ):
        raise ValueError(f"parameter {parameter.name!r} needs two or more ascending finite choices")
    if parameter.default is not None:
        _accept_value(parameter, parameter.default)

"""The flat parameters of one branch's study, as the sampler sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

ParameterValue: TypeAlias = float | int | str
"""A float for a `FloatParameter`, a listed number for a `DiscreteParameter`, else a string."""


@dataclass(frozen=True, slots=True)
class FloatParameter:
    """A continuous parameter with closed bounds, `low < high`."""

    name: str
    low: float
    high: float
    default: float | None = None


@dataclass(frozen=True, slots=True)
class DiscreteParameter:
    """A parameter over two or more distinct numbers, ascending; `log` asks for log scaling."""

    name: str
    values: tuple[float | int, ...]
    log: bool = False
    default: float | int | None = None


@dataclass(frozen=True, slots=True)
class CategoricalParameter:
    """A parameter over two or more distinct labels, in the order of the configuration."""

    name: str
    values: tuple[str, ...]
    default: str | None = None


Parameter: TypeAlias = FloatParameter | DiscreteParameter | CategoricalParameter
Assignment: TypeAlias = dict[str, ParameterValue]


def first_value(parameter: Parameter) -> ParameterValue:
    """The value to try first: the default, else the middle of the range or list."""
    if parameter.default is not None:
        return parameter.default
    if isinstance(parameter, FloatParameter):
        return (parameter.low + parameter.high) / 2
    return parameter.values[len(parameter.values) // 2]

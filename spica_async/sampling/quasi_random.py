"""Seeded quasi-random assignments, which stand in when the optimizer cannot answer."""

from __future__ import annotations

from spica_async.sampling.seeding import derive_seed
from spica_async.sampling.types import Study
from spica_async.space.parameters import Assignment, FloatParameter, Parameter, ParameterValue


def draw(study: Study, number: int) -> Assignment:
    """Returns point `number` (from 0) of the study's own scrambled Halton sequence.

    A float is uniform over its range; a listed value is uniform over the list, so log-spaced
    numbers are drawn on their log scale. The point depends on the study's seed, branch and
    parameters and on `number`, so points of successive numbers fill the space evenly whichever
    process draws them. The first draw of a process imports scipy: keep it off an event loop.
    """
    from scipy.stats import qmc  # noqa: PLC0415 - Takes half a second, and most sweeps never draw.

    sequence = qmc.Halton(
        d=len(study.parameters), scramble=True, rng=derive_seed(study, "quasi-random")
    )
    sequence.fast_forward(number)
    point = sequence.random(1)[0]
    return {
        parameter.name: _value_at(parameter, float(coordinate))
        for parameter, coordinate in zip(study.parameters, point, strict=True)
    }


def _value_at(parameter: Parameter, coordinate: float) -> ParameterValue:
    """Maps a coordinate in [0, 1) to a value."""
    if isinstance(parameter, FloatParameter):
        value = parameter.low + coordinate * (parameter.high - parameter.low)
        return min(value, parameter.high)  # The sum may round up past the bound.
    return parameter.values[int(coordinate * len(parameter.values))]

"""Histories of smooth functions over small mixed spaces, for the bandit to learn from."""

from __future__ import annotations

import math

from spica_async.optimizer.quasi_random import draw
from spica_async.optimizer.types import Objective, Study, Suggestion, Trial
from spica_async.optimizer.wire import AskRequest
from spica_async.space.parameters import (
    Assignment,
    CategoricalParameter,
    DiscreteParameter,
    FloatParameter,
    Parameter,
)

NUMERIC: tuple[Parameter, ...] = (
    FloatParameter("f", 0.0, 2.0),
    DiscreteParameter("n", (1, 2, 4, 8, 16), log=True),
)
CATEGORICAL: tuple[Parameter, ...] = (
    CategoricalParameter("c", ("a", "b", "c", "d")),
    CategoricalParameter("d", ("x", "y", "z")),
)
SPACES = {"numeric": NUMERIC, "categorical": CATEGORICAL, "mixed": NUMERIC + CATEGORICAL}


def study_of(space: str, objectives: int) -> Study:
    names = [f"y{i}" for i in range(objectives)]
    return Study("agg", 5, SPACES[space], tuple(Objective(name, maximize=True) for name in names))


def metrics_of(study: Study, assignment: Assignment) -> dict[str, float]:
    """Smooth in the numbers and different by label, each objective in its own way."""
    level = sum(
        len(name) + ord(value) % 5 if isinstance(value, str) else math.log(1 + value)
        for name, value in assignment.items()
    )
    return {objective.name: math.sin(level + i) for i, objective in enumerate(study.objectives)}


def request_of(study: Study, observed: int, pending: int, count: int) -> AskRequest:
    """An ask after drawn trials, of which the first are observed and the others pending."""
    drawn = [Suggestion(number, draw(study, number)) for number in range(observed + pending)]
    history = tuple(
        Trial(s.number, s.assignment, metrics_of(study, s.assignment)) for s in drawn[:observed]
    )
    return AskRequest(observed + pending, count, history, tuple(drawn[observed:]))

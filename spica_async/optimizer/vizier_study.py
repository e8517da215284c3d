"""The study and its trials in Vizier's terms, and Vizier's suggestions back in ours.

Imported in the optimizer process only.
"""

from __future__ import annotations

import datetime as dt
import json

from vizier import pyvizier as vz

from spica_async.optimizer.assignments import accept
from spica_async.optimizer.types import Study, Suggestion, Trial
from spica_async.space.parameters import (
    Assignment,
    DiscreteParameter,
    FloatParameter,
    Parameter,
)

METADATA_NAMESPACE = "spica_projection"

_EPOCH = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
"""Time 0 of the numbers; it lies before everything that Vizier stamps with the real clock."""


def to_problem(study: Study) -> vz.ProblemStatement:
    """Returns the flat Vizier problem of a study."""
    problem = vz.ProblemStatement()
    for parameter in study.parameters:
        _add_parameter(problem.search_space.root, parameter)
    for objective in study.objectives:
        goal = vz.ObjectiveMetricGoal
        problem.metric_information.append(
            vz.MetricInformation(
                name=objective.name, goal=goal.MAXIMIZE if objective.maximize else goal.MINIMIZE
            )
        )
    return problem


def to_completed(trial: Trial, told_before: int) -> vz.CompletedTrial:
    """Returns an observed trial for Vizier.

    The designer compares times to see whether it has learnt anything since the pending trials were
    made. Clocks would make its proposals differ from run to run, so numbers are times.

    Args:
        trial: What was observed.
        told_before: Number of the first suggestion that was made with this known.
    """
    time = _time_of(told_before)
    completed = vz.Trial(
        id=trial.number + 1,
        parameters=trial.assignment,
        creation_time=time,
        completion_time=time,
        final_measurement=vz.Measurement(trial.metrics or {}),
        infeasibility_reason="infeasible or failed" if trial.metrics is None else None,
    )
    projection = completed.metadata.ns(METADATA_NAMESPACE)
    for key, value in trial.metadata.items():
        projection[key] = json.dumps(value)
    return completed


def to_active(suggestion: Suggestion) -> vz.Trial:
    """Returns a pending suggestion for Vizier, without a measurement."""
    return vz.Trial(
        id=suggestion.number + 1,
        parameters=suggestion.assignment,
        creation_time=_time_of(suggestion.number),
    )


def to_assignment(study: Study, suggestion: vz.TrialSuggestion) -> Assignment:
    """Returns what Vizier suggests as plain listed values.

    Raises:
        ValueError: If the suggestion is not an assignment of the study.
    """
    return accept(
        study.parameters,
        {name: parameter.value for name, parameter in suggestion.parameters.items()},
    )


def _time_of(number: int) -> dt.datetime:
    return _EPOCH + dt.timedelta(seconds=number)


def _add_parameter(root: vz.SearchSpaceSelector, parameter: Parameter) -> None:
    if isinstance(parameter, FloatParameter):
        root.add_float_param(
            parameter.name, parameter.low, parameter.high, default_value=parameter.default
        )
    elif isinstance(parameter, DiscreteParameter):
        root.add_discrete_param(
            parameter.name,
            parameter.values,
            default_value=parameter.default,
            scale_type=vz.ScaleType.LOG if parameter.log else vz.ScaleType.LINEAR,
        )
    else:
        root.add_categorical_param(
            parameter.name, parameter.values, default_value=parameter.default
        )

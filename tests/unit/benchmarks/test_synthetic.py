"""The optima that the optimizer benchmark measures against."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic.problem import BEST_SCORE, Problem
from synthetic.spaces import PROBLEMS

from spica_async.optimizer.assignments import accept, centre, check_study
from spica_async.optimizer.quasi_random import draw
from spica_async.optimizer.types import Study
from spica_async.space.parameters import (
    Assignment,
    FloatParameter,
    Parameter,
    ParameterValue,
)

each_problem = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=list(PROBLEMS))


def assignments(problem: Problem) -> st.SearchStrategy[Assignment]:
    """Anything at all, but often near the best: that is where it could be exceeded."""

    def values(parameter: Parameter) -> st.SearchStrategy[ParameterValue]:
        best = st.just(problem.best[parameter.name])
        if isinstance(parameter, FloatParameter):
            return best | st.floats(parameter.low, parameter.high)
        return best | st.sampled_from(parameter.values)

    return st.fixed_dictionaries({p.name: values(p) for p in problem.parameters})


def study(problem: Problem) -> Study:
    return Study(problem.name, 1, problem.parameters, problem.objectives(2))


@each_problem
def test_it_is_a_study_like_those_of_a_sweep(problem: Problem) -> None:
    check_study(study(problem))
    assert 8 <= len(problem.parameters) <= 12
    assert {type(parameter).__name__ for parameter in problem.parameters} == {
        "FloatParameter",
        "DiscreteParameter",
        "CategoricalParameter",
    }


@each_problem
def test_the_best_score_is_reached(problem: Problem) -> None:
    assert accept(problem.parameters, problem.best) == problem.best
    assert problem.score(problem.best) == BEST_SCORE
    assert problem.quality([problem.measure(problem.best, 1)], 1) == 1.0


@each_problem
@settings(deadline=None)  # The first example makes the front.
@given(data=st.data())
def test_nothing_exceeds_the_best_score_or_the_front(problem: Problem, data: st.DataObject) -> None:
    assignment = data.draw(assignments(problem))
    losses = problem.losses(assignment)
    assert losses.shared >= 0
    assert losses.off_centre >= 0
    assert 0 < problem.score(assignment) <= BEST_SCORE
    # Were nothing of the shared kind lost, the point would be one of the front's, or between two
    # steps of its grid; what is lost of it makes both objectives worse.
    throughput, latency = problem.trade(assignment)
    front = front_of(problem)
    assert ((front[:, 0] >= 0.998 * throughput) & (front[:, 1] <= 1.002 * latency)).any()
    lossy_throughput, lossy_latency = problem.throughput_and_latency(assignment)
    assert lossy_throughput <= throughput
    assert lossy_latency >= latency


@each_problem
def test_the_front_loses_nothing_but_by_its_grid(problem: Problem) -> None:
    for assignment in itertools.islice(problem.front(), 0, None, 97):
        assert accept(problem.parameters, assignment) == assignment
        assert problem.losses(assignment).shared == pytest.approx(0, abs=1e-12)
    # Half the grid's points dominate as good as all of them.
    coarse = problem.hypervolume(map(tuple, front_of(problem)[::2]))
    assert coarse == pytest.approx(problem.best_hypervolume, rel=2e-3)
    assert problem.quality(map(tuple, front_of(problem)), 2) == pytest.approx(1)


@each_problem
def test_neither_the_centre_nor_chance_comes_near_the_best(problem: Problem) -> None:
    drawn = [draw(study(problem), number) for number in range(256)]
    assert problem.score(centre(problem.parameters)) < BEST_SCORE / 2
    assert problem.quality([problem.measure(one, 1) for one in drawn], 1) < 0.85
    assert problem.quality([problem.measure(one, 2) for one in drawn], 2) < 0.85


@each_problem
def test_every_parameter_matters_but_the_inactive_ones(problem: Problem) -> None:
    idle = {"log_level"}
    for parameter in problem.parameters:
        values = (
            (parameter.low, parameter.high)
            if isinstance(parameter, FloatParameter)
            else parameter.values
        )
        scores = {
            problem.score({**problem.best, parameter.name: value})
            for value in (*values, problem.best[parameter.name])
        }
        assert (len(scores) > 1) == (parameter.name not in idle), parameter.name


def test_what_a_choice_leaves_inactive_changes_nothing() -> None:
    problem = PROBLEMS["ridge"]
    off = {**problem.best, "planner": "off"}
    assert problem.score(off) == problem.score({**off, "interval": 180, "smoothing": "none"})
    even = {**problem.best, "router": "even"}
    assert problem.score(even) == problem.score({**even, "temperature": 0.25})


def test_a_hypervolume_is_the_area_down_to_the_reference() -> None:
    problem = replace(PROBLEMS["smooth"], reference=(1.0, 10.0))
    # By hand: 2 x 2 and 1 x 5 less the 1 x 2 that both cover; the other two are not within.
    assert problem.hypervolume([(3.0, 8.0), (2.0, 5.0), (9.0, 11.0), (0.5, 1.0)]) == 7.0


@cache
def front_of(problem: Problem) -> npt.NDArray[np.float64]:
    """Throughput and latency along the front."""
    return np.array([problem.throughput_and_latency(one) for one in problem.front()])

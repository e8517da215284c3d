"""Values on their way in and out: what a study allows, its centre, draws, and Vizier's terms."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spica_async.optimizer.assignments import accept, centre, check_study
from spica_async.optimizer.quasi_random import draw, draw_spread
from spica_async.optimizer.seeding import derive_seed
from spica_async.optimizer.types import Objective, Study, Suggestion, Trial
from spica_async.optimizer.wire import (
    AskRequest,
    Opening,
    PrepareRequest,
    decode_opening,
    decode_request,
    encode,
)
from spica_async.space.parameters import (
    Assignment,
    CategoricalParameter,
    DiscreteParameter,
    FloatParameter,
    Parameter,
)

OBJECTIVES = (Objective("throughput", maximize=True),)


@st.composite
def float_parameters(draw_from: st.DrawFn) -> FloatParameter:
    low, high = sorted(
        draw_from(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=2, unique=True))
    )
    default = draw_from(st.none() | st.floats(low, high))
    return FloatParameter("x", low, high, default)


@st.composite
def discrete_parameters(draw_from: st.DrawFn) -> DiscreteParameter:
    log = draw_from(st.booleans())
    smallest = 1 if log else -1000
    numbers = st.integers(smallest, 1000) | st.integers(4 * smallest, 4000).map(lambda n: n / 4)
    values = tuple(sorted(draw_from(st.lists(numbers, min_size=2, max_size=9, unique=True))))
    return DiscreteParameter(
        "x", values, log=log, default=draw_from(st.none() | st.sampled_from(values))
    )


@st.composite
def categorical_parameters(draw_from: st.DrawFn) -> CategoricalParameter:
    labels = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8)
    values = tuple(draw_from(st.lists(labels, min_size=2, max_size=7, unique=True)))
    return CategoricalParameter("x", values, draw_from(st.none() | st.sampled_from(values)))


@st.composite
def studies(draw_from: st.DrawFn) -> Study:
    parameter = float_parameters() | discrete_parameters() | categorical_parameters()
    parameters: list[Parameter] = draw_from(st.lists(parameter, min_size=1, max_size=6))
    return Study(
        branch=draw_from(st.sampled_from(["agg", "disagg"])),
        seed=draw_from(st.integers(0, 2**40)),
        parameters=tuple(
            replace(parameter, name=f"p{i}") for i, parameter in enumerate(parameters)
        ),
        objectives=OBJECTIVES,
    )


def same(a: Assignment, b: Assignment) -> bool:
    """Equal, in the same order, and of the same types: 1 is not 1.0."""
    return [(k, type(v), v) for k, v in a.items()] == [(k, type(v), v) for k, v in b.items()]


@given(studies(), st.integers(0, 3000))
def test_a_draw_is_an_assignment_of_listed_values(study: Study, number: int) -> None:
    check_study(study)
    drawn = draw(study, number)
    assert same(accept(study.parameters, drawn), drawn)


@given(studies(), st.integers(0, 300))
def test_a_draw_depends_on_study_and_number_alone(study: Study, number: int) -> None:
    first = draw(study, number)
    draw(study, number + 1)
    assert same(draw(decode_opening(encode(Opening(study, 0.0))).study, number), first)


labels = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | labels
assignments = st.dictionaries(labels, values, max_size=5)
metrics = st.none() | st.dictionaries(labels, st.floats(allow_nan=False, allow_infinity=False))
metadata = st.dictionaries(labels, values | st.none() | st.booleans() | assignments, max_size=3)
asks = st.builds(
    AskRequest,
    first=st.integers(0, 3000),
    count=st.integers(1, 64),
    history=st.lists(st.builds(Trial, st.integers(0), assignments, metrics, metadata)).map(tuple),
    pending=st.lists(st.builds(Suggestion, st.integers(0), assignments, st.none() | labels)).map(
        tuple
    ),
    has_news=st.booleans(),
)


@settings(deadline=None)
@given(studies(), st.floats(0, 1e9), asks)
def test_what_is_sent_to_the_optimizer_is_what_it_reads(
    study: Study, started: float, ask: AskRequest
) -> None:
    # By its looks, since 1 is 1.0, and another answer could come of it.
    assert repr(decode_opening(encode(Opening(study, started)))) == repr(Opening(study, started))
    for request in (ask, PrepareRequest(ask)):
        assert repr(decode_request(encode(request))) == repr(request)


def test_draws_differ_with_seed_branch_and_number() -> None:
    study = Study("agg", 1, (FloatParameter("x", 0.0, 1.0),), OBJECTIVES)
    values = {
        draw(study, 0)["x"],
        draw(study, 1)["x"],
        draw(replace(study, seed=2), 0)["x"],
        draw(replace(study, branch="disagg"), 0)["x"],
    }
    assert len(values) == 4


def test_successive_draws_visit_every_choice_evenly() -> None:
    study = Study(
        "agg",
        3,
        (DiscreteParameter("n", (1, 4, 16, 64), log=True), CategoricalParameter("c", ("a", "b"))),
        OBJECTIVES,
    )
    drawn = [draw(study, number) for number in range(40, 104)]
    for name, values in (("n", (1, 4, 16, 64)), ("c", ("a", "b"))):
        counts = [sum(d[name] == value for d in drawn) for value in values]
        assert max(counts) - min(counts) <= 3


def test_coordinates_of_a_block_fall_into_different_parts() -> None:
    from spica_async.optimizer.quasi_random import _coordinate, _scrambles

    for base, scramble in _scrambles(5, 12):
        for size in (base, base**2):
            # Wherever a block of so many numbers begins that is a multiple of their count.
            block = [_coordinate(7 * size + i, base, scramble) for i in range(size)]
            assert sorted(int(coordinate * size) for coordinate in block) == list(range(size))
            assert all(0 <= coordinate < 1 for coordinate in block)


def test_each_dimension_has_a_prime_of_its_own_for_a_base() -> None:
    from spica_async.optimizer.quasi_random import _scrambles

    assert [base for base, _ in _scrambles(1, 8)] == [2, 3, 5, 7, 11, 13, 17, 19]


def test_spread_trials_are_the_centre_and_then_draws() -> None:
    study = Study("agg", 3, PARAMETERS, OBJECTIVES)
    assert draw_spread(study, range(3)) == [
        Suggestion(0, centre(PARAMETERS)),
        Suggestion(1, draw(study, 1)),
        Suggestion(2, draw(study, 2)),
    ]
    assert draw_spread(study, range(2, 3)) == [Suggestion(2, draw(study, 2))]


def test_the_last_coordinate_stays_inside_the_range() -> None:
    from spica_async.optimizer.quasi_random import _value_at

    below_one = math.nextafter(1.0, 0.0)
    # Here the bare formula gives 0.7000000000000001.
    parameter = FloatParameter("x", -0.1, 0.7)
    assert _value_at(parameter, 0.0) == parameter.low
    assert float(_value_at(parameter, below_one)) <= parameter.high
    assert _value_at(CategoricalParameter("c", ("a", "b", "c")), below_one) == "c"


def test_seeds_differ_with_each_part_and_fit_63_bits() -> None:
    study = Study("agg", 1, (), ())
    seeds = {
        derive_seed(study, "ask", 0),
        derive_seed(study, "ask", 1),
        derive_seed(study, "seeds", 0),
        derive_seed(replace(study, seed=2), "ask", 0),
        derive_seed(replace(study, branch="agg1"), "ask", 0),
    }
    assert len(seeds) == 5
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_seed_is_the_same_in_every_process() -> None:
    assert derive_seed(Study("agg", 1, (), ()), "ask", 8) == 4417028235976792756


@given(studies())
def test_the_centre_is_an_assignment_made_of_the_defaults(study: Study) -> None:
    assignment = centre(study.parameters)
    assert same(accept(study.parameters, assignment), assignment)
    for parameter in study.parameters:
        if parameter.default is not None:
            assert assignment[parameter.name] == parameter.default


def test_the_centre_without_defaults_is_the_middle() -> None:
    parameters = (
        FloatParameter("f", 1.0, 4.0),
        DiscreteParameter("n", (1, 2, 4)),
        CategoricalParameter("c", ("a", "b")),
    )
    assert centre(parameters) == {"f": 2.5, "n": 2, "c": "b"}


PARAMETERS = (
    FloatParameter("f", 0.0, 1.0),
    DiscreteParameter("n", (1, 2.5)),
    CategoricalParameter("c", ("a", "b")),
)


def test_accept_returns_the_listed_values_in_order() -> None:
    accepted = accept(PARAMETERS, {"c": "b", "n": 1.0, "f": 1})
    assert same(accepted, {"f": 1.0, "n": 1, "c": "b"})


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"f": math.nan}, "'f' cannot be nan"),
        ({"f": math.inf}, "'f' cannot be inf"),
        ({"f": math.nextafter(1.0, 2.0)}, "'f' cannot be 1.0000000000000002"),
        ({"f": math.nextafter(0.0, -1.0)}, "'f' cannot be -5e-324"),
        ({"f": "0.5"}, "'f' cannot be '0.5'"),
        ({"f": 10**400}, "'f' cannot be 1000"),
        ({"n": 10**400}, "'n' cannot be 1000"),
        ({"n": math.nan}, "'n' cannot be nan"),
        ({"n": 2}, "'n' cannot be 2"),
        ({"n": True}, "'n' cannot be True"),
        ({"c": "z"}, "'c' cannot be 'z'"),
        ({"c": 1}, "'c' cannot be 1"),
        ({"c": None}, "'c' cannot be None"),
        ({"other": 1}, "unknown parameters: other"),
    ],
)
def test_accept_refuses_what_the_study_does_not_allow(
    changes: dict[str, object], complaint: str
) -> None:
    raw = {"f": 0.5, "n": 1, "c": "a"} | changes
    with pytest.raises(ValueError, match=complaint):
        accept(PARAMETERS, raw)


def test_accept_names_what_is_missing() -> None:
    with pytest.raises(ValueError, match="missing parameters: c, f"):
        accept(PARAMETERS, {"n": 1})


@pytest.mark.parametrize(
    ("parameters", "objectives", "complaint"),
    [
        ((), OBJECTIVES, "no parameter"),
        (PARAMETERS, (), "no objective"),
        ((*PARAMETERS, FloatParameter("c", 0.0, 1.0)), OBJECTIVES, "parameter twice"),
        (PARAMETERS, OBJECTIVES * 2, "objective twice"),
        ((FloatParameter("x", 1.0, 1.0),), OBJECTIVES, "ascending finite"),
        ((FloatParameter("x", 0.0, math.inf),), OBJECTIVES, "ascending finite"),
        ((FloatParameter("x", 0.0, 1.0, 1.5),), OBJECTIVES, "cannot be 1.5"),
        ((DiscreteParameter("x", (1,)),), OBJECTIVES, "ascending finite"),
        ((DiscreteParameter("x", (2, 1)),), OBJECTIVES, "ascending finite"),
        ((DiscreteParameter("x", (1, 2), default=3),), OBJECTIVES, "cannot be 3"),
        ((DiscreteParameter("x", (0, 2), log=True),), OBJECTIVES, "logs"),
        ((CategoricalParameter("x", ("a",)),), OBJECTIVES, "ascending finite"),
        ((CategoricalParameter("x", ("a", "a")),), OBJECTIVES, "a choice twice"),
        ((CategoricalParameter("x", ("a", "b"), "c"),), OBJECTIVES, "cannot be 'c'"),
    ],
)
def test_a_study_that_cannot_be_searched_is_refused(
    parameters: tuple[Parameter, ...], objectives: tuple[Objective, ...], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        check_study(Study("agg", 1, parameters, objectives))


# Vizier's libraries warn while they are imported.
vizier_warns = pytest.mark.filterwarnings("ignore")


@vizier_warns
@settings(max_examples=60, deadline=None)
@given(studies(), st.integers(0, 300))
def test_values_survive_the_way_through_vizier(study: Study, number: int) -> None:
    from vizier import pyvizier as vz
    from vizier.pyvizier import converters

    from spica_async.optimizer.vizier_study import to_active, to_assignment, to_problem

    assignment = draw(study, number)
    # As the designer scales them; see its constructor.
    converter = converters.TrialToArrayConverter.from_study_config(
        to_problem(study), scale=True, max_discrete_indices=0
    )
    features = converter.to_features([to_active(Suggestion(number, assignment))])
    (parameters,) = converter.to_parameters(features)
    returned = to_assignment(study, vz.TrialSuggestion(parameters))
    for parameter in study.parameters:
        value, expected = returned[parameter.name], assignment[parameter.name]
        assert type(value) is type(expected)
        if isinstance(parameter, FloatParameter):
            width = parameter.high - parameter.low
            scale = max(abs(parameter.low), abs(parameter.high), width)
            assert abs(float(value) - float(expected)) <= 1e-9 * scale
        else:
            assert value == expected


@vizier_warns
def test_a_problem_has_one_metric_per_objective_and_keeps_scales_and_defaults() -> None:
    from vizier import pyvizier as vz

    from spica_async.optimizer.vizier_study import to_problem

    problem = to_problem(
        Study(
            "agg",
            1,
            (
                FloatParameter("f", 0.0, 2.0, 1.5),
                DiscreteParameter("n", (1, 2, 8), log=True, default=2),
                DiscreteParameter("m", (0.0, 0.5), default=0.5),
                CategoricalParameter("c", ("tp", "dp"), "tp"),
            ),
            (Objective("throughput", maximize=True), Objective("latency", maximize=False)),
        )
    )
    goals = [(metric.name, metric.goal) for metric in problem.metric_information]
    assert goals == [
        ("throughput", vz.ObjectiveMetricGoal.MAXIMIZE),
        ("latency", vz.ObjectiveMetricGoal.MINIMIZE),
    ]
    found = {
        p.name: (p.type, p.scale_type, p.default_value) for p in problem.search_space.parameters
    }
    assert found["f"] == (vz.ParameterType.DOUBLE, vz.ScaleType.LINEAR, 1.5)
    assert found["n"] == (vz.ParameterType.DISCRETE, vz.ScaleType.LOG, 2)
    assert found["m"] == (vz.ParameterType.DISCRETE, vz.ScaleType.LINEAR, 0.5)
    assert found["c"][::2] == (vz.ParameterType.CATEGORICAL, "tp")


@vizier_warns
def test_a_trial_carries_metrics_times_and_projection() -> None:
    from spica_async.optimizer.vizier_study import to_active, to_completed

    trial = Trial(4, {"f": 0.5}, {"throughput": 2.0}, {"distance": 0.25, "config": {"tp": 2}})
    completed = to_completed(trial, 6)
    assert completed.is_completed
    assert not completed.infeasible
    assert completed.final_measurement_or_die.metrics["throughput"].value == 2.0
    projection = completed.metadata.ns("spica_projection")
    assert dict(projection) == {"distance": "0.25", "config": '{"tp": 2}'}

    failed = to_completed(Trial(5, {"f": 0.5}, None), 6)
    assert failed.infeasible
    # It was observed before that was suggested, whatever its own number is.
    active = to_active(Suggestion(7, {"f": 0.5}))
    assert completed.completion_time is not None
    assert completed.completion_time == failed.completion_time < active.creation_time
    assert not active.is_completed


def test_neither_proxy_nor_child_loads_the_optimizers_libraries_itself() -> None:
    program = (
        "import sys, spica_async.optimizer.profiles, spica_async.optimizer.child\n"
        "heavy = {'jax', 'vizier', 'scipy', 'equinox'} & sys.modules.keys()\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

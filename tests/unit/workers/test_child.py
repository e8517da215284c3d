"""What the child makes of an evaluator's result."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import pytest

from schemas.messages import EvaluationRequest, Measurement, SyntheticLoad
from workers.child import MAX_REPLY_BYTES, measure

REQUEST = EvaluationRequest(
    evaluation_id="e1",
    sweep_id="sweep",
    sample={},
    load=SyntheticLoad(isl=1, osl=1, requests=1, concurrency=1),
)


def run(evaluate: Callable[[EvaluationRequest], object]) -> Measurement:
    return Measurement.model_validate_json(measure(evaluate, REQUEST))


def raising(error: BaseException) -> Callable[[EvaluationRequest], NoReturn]:
    def evaluate(request: EvaluationRequest) -> NoReturn:
        raise error

    return evaluate


def with_detail(length: int) -> Measurement:
    return Measurement(outcome="infeasible", cause="no_kv_room", detail="x" * length)


def test_a_measurement_is_passed_on() -> None:
    measured = Measurement(outcome="feasible", report={"tokens": 1.5}, replay_seconds=2.0)
    assert run(lambda request: measured) == measured


@pytest.mark.parametrize("nonsense", [None, 1.0, {"outcome": "feasible"}, Measurement])
def test_anything_else_is_a_failure(nonsense: object) -> None:
    failed = run(lambda request: nonsense)
    assert (failed.outcome, failed.cause) == ("failed", "replay_error")
    assert f"returned {type(nonsense).__name__}, not" in str(failed.detail)


@pytest.mark.parametrize("error", [ValueError("two\n lines"), SystemExit("two lines")])
def test_an_error_becomes_one_line(error: BaseException) -> None:
    failed = run(raising(error))
    assert (failed.outcome, failed.cause) == ("failed", "replay_error")
    assert failed.detail == f"{type(error).__name__}: two lines"


def test_a_long_error_is_cut() -> None:
    detail = run(raising(ValueError("x" * MAX_REPLY_BYTES))).detail
    assert detail is not None
    assert len(detail) == 2000
    assert detail.startswith("ValueError: xxx")


def test_a_reply_has_a_largest_size() -> None:
    frame = len(with_detail(0).model_dump_json())
    largest = with_detail(MAX_REPLY_BYTES - frame)
    assert run(lambda request: largest) == largest
    too_large = run(lambda request: with_detail(MAX_REPLY_BYTES - frame + 1))
    assert too_large.cause == "replay_error"
    assert f"{MAX_REPLY_BYTES + 1} bytes" in str(too_large.detail)

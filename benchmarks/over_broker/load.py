"""Evaluations that take no work, in messages of the size of real ones."""

from __future__ import annotations

from schemas.messages import EvaluationRequest, Measurement, Sample, SyntheticLoad

BODY_BYTES = 1500
"""A request's body, and a result's, with a few bytes more or less for the length of ids."""

_LOAD = SyntheticLoad(isl=1000, osl=100, requests=8, concurrency=4)
# Some 570 bytes of a request are its envelope, its ids and its load, 500 of a result.
_SAMPLE: Sample = {f"agg_knob_{number:03}": number for number in range(52)}
_REPORT = {f"p99_measured_{number:02}_ms": 865.4192129999934 + number for number in range(25)}

EMPTY = Measurement(outcome="feasible", report=_REPORT)


def empty_request(sweep: str, number: int) -> EvaluationRequest:
    """A request of its own; `number` tells it from the others of its sweep."""
    return EvaluationRequest(
        evaluation_id=f"{sweep}-agg-{number}", sweep_id=sweep, sample=_SAMPLE, load=_LOAD
    )

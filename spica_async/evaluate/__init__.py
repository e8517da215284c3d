"""Requests out, results in: the coordinator's side of the bus."""

from spica_async.evaluate.fleet import Fleet
from spica_async.evaluate.in_flight import Earlier, EvaluationGivenUpError, Evaluations, Watch
from spica_async.evaluate.messages import Discarded
from spica_async.evaluate.turns import FairTurns, Share

__all__ = [
    "Discarded",
    "Earlier",
    "EvaluationGivenUpError",
    "Evaluations",
    "FairTurns",
    "Fleet",
    "Share",
    "Watch",
]

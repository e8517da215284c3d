"""Requests out, results in: the coordinator's side of the bus."""

from spica_async.evaluate.in_flight import Earlier, EvaluationGivenUpError, Evaluations
from spica_async.evaluate.incoming import Discarded
from spica_async.evaluate.turns import FairTurns, Share

__all__ = [
    "Discarded",
    "Earlier",
    "EvaluationGivenUpError",
    "Evaluations",
    "FairTurns",
    "Share",
]

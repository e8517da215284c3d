"""Requests out, results in: the coordinator's side of the bus."""

from spica_async.evaluations.in_flight import EvaluationGivenUpError, Evaluations
from spica_async.evaluations.incoming import Discarded

__all__ = ["Discarded", "EvaluationGivenUpError", "Evaluations"]

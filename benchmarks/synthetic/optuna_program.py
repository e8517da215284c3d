"""One Optuna study behind JSON lines; run by the Python of the benchmarks' own environment.

The first line sets the study up; each line after that is answered by one:

    {"sampler": "tpe", "seed": 1, "directions": ["maximize"], "parameters": [...]}
    {"ask": 8}                               -> {"trials": [[number, {name: value, ...}], ...]}
    {"place": [{name: value, ...}, ...]}     -> {"trials": [[number, {name: value, ...}], ...]}
    {"tell": [[number, [value, ...]], ...]}  -> {}

It imports nothing of ours: Optuna and PyTorch live in an environment without our packages.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, GPSampler, TPESampler
from optuna.trial import TrialState, create_trial

SAMPLERS: dict[str, Callable[[int], BaseSampler]] = {
    # As Optuna 5 sets it up: multivariate for one objective, independent for several, and the
    # trials under way count as bad ones.
    "tpe": lambda seed: TPESampler(seed=seed),
    # The objectives are functions, so the model need not look for noise.
    "gp": lambda seed: GPSampler(seed=seed, deterministic_objective=True),
}


class Program:
    """A study that is asked and told."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self._study = optuna.create_study(
            directions=setup["directions"], sampler=SAMPLERS[setup["sampler"]](setup["seed"])
        )
        self._distributions = {
            parameter["name"]: _distribution(parameter) for parameter in setup["parameters"]
        }

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out one request.

        Raises:
            ValueError: if it is none.
        """
        match request:
            case {"ask": count}:
                return {"trials": [self._ask() for _ in range(count)]}
            case {"place": assignments}:
                return {"trials": [self._place(assignment) for assignment in assignments]}
            case {"tell": told}:
                for number, values in told:
                    self._study.tell(number, values)
                return {}
        raise ValueError(f"cannot answer {request}")

    def _ask(self) -> tuple[int, dict[str, Any]]:
        trial = self._study.ask(self._distributions)
        return trial.number, trial.params

    def _place(self, assignment: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self._study.add_trial(
            create_trial(
                state=TrialState.RUNNING, params=assignment, distributions=self._distributions
            )
        )
        return len(self._study.get_trials(deepcopy=False)) - 1, assignment


def _distribution(parameter: dict[str, Any]) -> BaseDistribution:
    match parameter:
        case {"low": low, "high": high}:
            return FloatDistribution(low, high)
        case {"places": places}:
            return IntDistribution(0, places - 1)
        case {"labels": labels}:
            return CategoricalDistribution(labels)
    raise ValueError(f"cannot search {parameter}")


def main() -> None:
    """Answer the lines of stdin until there are no more."""
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    program = Program(json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        print(json.dumps(program.answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()

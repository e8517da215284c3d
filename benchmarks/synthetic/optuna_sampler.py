"""An Optuna study in a process of its own, as a sampler of ours."""

from __future__ import annotations

import asyncio
import json
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from schemas.journal import SamplerStats
from spica_async.optimizer.assignments import accept
from spica_async.optimizer.types import Study, Suggestion, Trial
from spica_async.processes.child import child_environment
from spica_async.space.parameters import (
    Assignment,
    DiscreteParameter,
    FloatParameter,
    Parameter,
    ParameterValue,
)

_PROGRAM = Path(__file__).with_name("optuna_program.py")
_LONGEST_LINE = 16 * 2**20


class OptunaSampler:
    """Speaks with `optuna_program.py`; numbers are Optuna's own, which count from 0 too."""

    def __init__(self, study: Study, process: Process) -> None:
        self.stats = SamplerStats()
        self._study = study
        self._process = process

    @classmethod
    @asynccontextmanager
    async def open(cls, study: Study, sampler: str, python: Path) -> AsyncIterator[OptunaSampler]:
        """A study in a process of its own, which ends with the context.

        Args:
            study: what to search.
            sampler: `tpe` or `gp`.
            python: the interpreter that has Optuna.

        Raises:
            OSError: if there is no such interpreter.
        """
        process = await asyncio.create_subprocess_exec(
            python,
            _PROGRAM,
            stdin=PIPE,
            stdout=PIPE,
            limit=_LONGEST_LINE,
            env=child_environment() | {"PYTHONPATH": ""},
        )
        try:
            sampler_process = cls(study, process)
            sampler_process._send(_setup(study, sampler))
            yield sampler_process
        finally:
            if process.stdin is not None:
                process.stdin.close()
            await process.wait()

    async def ask(self, count: int) -> list[Suggestion]:
        """Proposes `count` assignments, one after the other, each with those before it pending."""
        began = time.perf_counter()
        trials = (await self._answer({"ask": count}))["trials"]
        self.stats.suggest_seconds += time.perf_counter() - began
        self.stats.asks += 1
        self.stats.suggestions += count
        return [self._suggestion(*trial) for trial in trials]

    async def place(self, assignments: Sequence[Assignment]) -> list[Suggestion]:
        """Takes in trials of the caller's own choosing as pending."""
        raw = [
            {p.name: _to_raw(p, assignment[p.name]) for p in self._study.parameters}
            for assignment in assignments
        ]
        return [
            self._suggestion(*trial) for trial in (await self._answer({"place": raw}))["trials"]
        ]

    async def restore(self, suggestions: Sequence[Suggestion], *, asked: bool) -> None:
        """Not what is measured here."""
        raise NotImplementedError

    async def observe(self, trials: Sequence[Trial]) -> None:
        """Takes in what is known of pending suggestions."""
        told = [
            (trial.number, [trial.metrics[o.name] for o in self._study.objectives])
            for trial in trials
            if trial.metrics is not None
        ]
        await self._answer({"tell": told})

    def _suggestion(self, number: int, raw: dict[str, Any]) -> Suggestion:
        values = {p.name: _from_raw(p, raw[p.name]) for p in self._study.parameters}
        return Suggestion(number, accept(self._study.parameters, values))

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdout is not None
        self._send(request)
        line = await self._process.stdout.readline()
        if not line:
            code = await self._process.wait()
            raise RuntimeError(f"the process of Optuna ended with exit code {code}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _setup(study: Study, sampler: str) -> dict[str, Any]:
    return {
        "sampler": sampler,
        "seed": study.seed,
        "directions": ["maximize" if o.maximize else "minimize" for o in study.objectives],
        "parameters": [_description(parameter) for parameter in study.parameters],
    }


def _description(parameter: Parameter) -> dict[str, Any]:
    if isinstance(parameter, FloatParameter):
        return {"name": parameter.name, "low": parameter.low, "high": parameter.high}
    if isinstance(parameter, DiscreteParameter):
        # Optuna's numbers are evenly spaced, on a log scale too: their places in the list are.
        return {"name": parameter.name, "places": len(parameter.values)}
    return {"name": parameter.name, "labels": parameter.values}


def _from_raw(parameter: Parameter, raw: Any) -> object:
    return parameter.values[raw] if isinstance(parameter, DiscreteParameter) else raw


def _to_raw(parameter: Parameter, value: ParameterValue) -> ParameterValue:
    if isinstance(parameter, DiscreteParameter):
        return list[ParameterValue](parameter.values).index(value)
    return value

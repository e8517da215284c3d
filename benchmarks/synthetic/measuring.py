"""Carries out one task: quality over a whole search, speed at a given history, or memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from schemas.journal import SamplerStats
from spica_async.optimizer.port import Sampler
from spica_async.optimizer.quasi_random import draw
from spica_async.optimizer.types import Study, Suggestion, Trial
from synthetic.contenders import open_contender
from synthetic.meter import cpu_seconds, memory_of_children, until_idle
from synthetic.problem import Problem
from synthetic.spaces import PROBLEMS

BATCH = 8
SPEED_ASKS = 3
"""The first is the first that a model answers in its process, the others are warm."""


@dataclass(frozen=True, slots=True)
class Task:
    """One measurement to make, in a new process of the contender.

    Attributes:
        contender: who searches.
        space: the name of the problem.
        objectives: 1 or 2.
        seed: the study's.
        trials: evaluations to make, or for `speed` trials told before the first measured ask.
    """

    part: Literal["quality", "speed", "memory"]
    contender: str
    space: str
    objectives: int
    seed: int
    trials: int

    @property
    def title(self) -> str:
        """For a person."""
        kind = "one objective" if self.objectives == 1 else "two objectives"
        return (
            f"{self.part} of {self.contender} on {self.space}, {kind},"
            f" {self.trials} trials, seed {self.seed}"
        )


@dataclass(frozen=True, slots=True)
class Ask:
    """One ask of a batch: seconds on the clock and of CPU, of all processes that took part."""

    wall_seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Record:
    """The outcome of one task.

    Attributes:
        asks: each ask in its order.
        cpu_seconds: of the whole task, the start and what ran between the asks included.
        peak_mb: the most resident memory of the contender's process at any time, in 10**6 bytes.
        memory_mb: what it was after each ask.
        stats: what the sampler tells of itself.
        values: the objectives of each trial, in the order of the suggestions; for quality only.
    """

    task: Task
    asks: tuple[Ask, ...]
    cpu_seconds: float
    peak_mb: float
    memory_mb: tuple[float, ...]
    stats: SamplerStats
    values: tuple[tuple[float, ...], ...]


class _Search:
    """A sampler that is asked in batches and shown results at once, with what that cost."""

    def __init__(self, problem: Problem, study: Study, sampler: Sampler) -> None:
        self.asks: list[Ask] = []
        self.values: list[tuple[float, ...]] = []
        self.memory_mb: list[float] = []
        self.peak_mb = 0.0
        self._problem = problem
        self._study = study
        self._sampler = sampler

    async def step(self) -> None:
        """Ask for a batch, measure it and have it observed."""
        cpu_began, began = cpu_seconds(), time.perf_counter()
        suggestions = await self._sampler.ask(BATCH)
        self.asks.append(Ask(time.perf_counter() - began, cpu_seconds() - cpu_began))
        now, highest = memory_of_children()
        self.memory_mb.append(now)
        self.peak_mb = max(self.peak_mb, highest)
        await self.observe(suggestions)

    async def observe(self, suggestions: Sequence[Suggestion]) -> None:
        """Measure suggestions and have the sampler observe them."""
        objectives = self._study.objectives
        trials = []
        for suggestion in suggestions:
            values = self._problem.measure(suggestion.assignment, len(objectives))
            self.values.append(values)
            metrics = {
                objective.name: value for objective, value in zip(objectives, values, strict=True)
            }
            trials.append(Trial(suggestion.number, suggestion.assignment, metrics))
        await self._sampler.observe(trials)


async def carry_out(task: Task, *, optuna_python: Path, log_folder: Path) -> Record:
    """Measure in a new process of the contender.

    Args:
        task: what to measure.
        optuna_python: the interpreter that has Optuna.
        log_folder: where the processes' stderr goes.
    """
    problem = PROBLEMS[task.space]
    study = Study(
        branch=problem.name,
        seed=task.seed,
        parameters=problem.parameters,
        objectives=problem.objectives(task.objectives),
    )
    cpu_began = cpu_seconds()
    async with open_contender(
        task.contender, study, optuna_python=optuna_python, log_folder=log_folder
    ) as sampler:
        search = _Search(problem, study, sampler)
        if task.part == "speed":
            placed = await sampler.place([draw(study, n) for n in range(task.trials)])
            await search.observe(placed)
            steps = SPEED_ASKS
        else:
            steps = task.trials // BATCH
        for _ in range(steps):
            await search.step()
            if task.part == "speed":
                await until_idle()
    return Record(
        task=task,
        asks=tuple(search.asks),
        cpu_seconds=cpu_seconds() - cpu_began,
        peak_mb=search.peak_mb,
        memory_mb=tuple(search.memory_mb),
        stats=sampler.stats,
        values=tuple(search.values) if task.part == "quality" else (),
    )

"""What goes into a sampler and what comes out."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import JsonValue

from spica_async.space.parameters import Assignment, Parameter


@dataclass(frozen=True, slots=True)
class Objective:
    """One metric of a study and its direction."""

    name: str
    maximize: bool


@dataclass(frozen=True, slots=True)
class Study:
    """All that a sampler needs to know of its branch.

    `seed` and `branch` (the study's name) and nothing else make the randomness.
    """

    branch: str
    seed: int
    parameters: tuple[Parameter, ...]
    objectives: tuple[Objective, ...]


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One proposed assignment; `number` counts a branch's suggestions from 0.

    `stand_in` says why a quasi-random draw stands in for the optimizer's proposal, if one does.
    """

    number: int
    assignment: Assignment
    stand_in: str | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """A suggestion with what is known of it, for the sampler to observe.

    `metrics` holds one finite raw value per objective, or is None when the trial was infeasible or
    failed; `metadata` is kept with the trial under the namespace `spica_projection`.
    """

    number: int
    assignment: Assignment
    metrics: dict[str, float] | None
    metadata: dict[str, JsonValue] = field(default_factory=dict)

"""The space of one branch: what its study sees, and what a proposal means."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from schemas.search_space import Backend, DeploymentMode
from spica_async.space.knobs import (
    OFFLOAD_WEIGHTS,
    PLANNER_COMPOSITES,
    ROUTER_WEIGHTS,
    Knob,
    planner_effect,
    scales,
)
from spica_async.space.parameters import (
    Assignment,
    FloatParameter,
    Parameter,
    ParameterValue,
    first_value,
)
from spica_async.space.pool import MenuPool, ParallelConfig, ParallelPool
from spica_async.space.product import ProductPool
from spica_async.space.projection import ParallelConfigProjector, Projection

KV_LOAD_RATIO = "kv_load_ratio"


@dataclass(frozen=True, slots=True)
class Selection:
    """One point of a branch: what to deploy and how, before it is written out as a flat sample."""

    mode: DeploymentMode
    backend: Backend
    config: ParallelConfig
    knobs: Mapping[str, JsonValue]
    kv_load_ratio: float | None = None


@dataclass(frozen=True)
class BranchSpace:
    """Everything that one study searches.

    Attributes:
        mode: the deployment mode that makes the branch.
        backend: the backends that can run something of the pool, as a knob.
        pool: the parallel configurations, with the backends that can run each.
        knobs: the list knobs that can change a replay of this branch, pinned ones included.
        ignored: for each backend, the knobs that its replays ignore.
        kv_load: one KV load ratio, a range of them to search, or None for another workload.
        gpu_budget: the GPUs that a `used_gpu_ratio` of 1 stands for.
    """

    mode: DeploymentMode
    backend: Knob
    pool: MenuPool | ProductPool
    knobs: tuple[Knob, ...]
    ignored: Mapping[Backend, frozenset[str]]
    kv_load: float | tuple[float, float] | None
    gpu_budget: int

    @cached_property
    def projector(self) -> ParallelConfigProjector:
        """The projection onto the pool."""
        return ParallelConfigProjector(self.pool, gpu_budget=self.gpu_budget)

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The study's parameters: the load, the latent shape, then every knob with a choice."""
        load = (
            [FloatParameter(KV_LOAD_RATIO, *self.kv_load)]
            if isinstance(self.kv_load, tuple)
            else []
        )
        knobs = (knob.parameter() for knob in (self.backend, *self.knobs))
        return (
            *load,
            *self.projector.parameters,
            *(parameter for parameter in knobs if parameter is not None),
        )

    def select(self, assignment: Assignment) -> tuple[Selection, Projection]:
        """What a study's proposal means, with how its latent shape was projected."""
        backend: Backend = _entry(self.backend, assignment)  # type: ignore[assignment]  # its entries
        ignored = self.ignored.get(backend, frozenset())
        chosen = {
            knob.name: _entry(knob, assignment) for knob in self.knobs if knob.name not in ignored
        }
        latent = {parameter.name for parameter in self.projector.parameters}
        request = {name: value for name, value in assignment.items() if name in latent}
        projection = self.projector.project(request, backend)
        if isinstance(self.kv_load, tuple):
            ratio: float | None = float(assignment[KV_LOAD_RATIO])
        else:
            ratio = self.kv_load
        return Selection(self.mode, backend, projection.config, chosen, ratio), projection

    def assignment_of(self, selection: Selection) -> Assignment:
        """A proposal that means `selection`, in the order of `parameters`.

        It asks for the very features of the configuration, so `select` gives the configuration back
        unless another one with all of these features stands before it in the pool. Knobs that the
        selection leaves out, for they change nothing under it, get the value to try first.

        Raises:
            ValueError: if the selection is not of this space.
        """
        if selection.config not in self.pool:
            raise ValueError(f"not in the pool: {selection.config}")
        features = self.projector.features(selection.config)
        values: dict[str, ParameterValue] = {**features}
        if selection.kv_load_ratio is not None:
            values[KV_LOAD_RATIO] = selection.kv_load_ratio
        for knob in (self.backend, *self.knobs):
            if knob.name in selection.knobs:
                values[knob.name] = knob.value(selection.knobs[knob.name])
        values[self.backend.name] = selection.backend
        return {
            parameter.name: values.get(parameter.name, first_value(parameter))
            for parameter in self.parameters
        }

    @property
    def distinct_selections(self) -> int | None:
        """How many selections differ in anything that is active, or None where no one can count."""
        if isinstance(self.kv_load, tuple):
            return None
        return sum(block.size for block in self._blocks)

    def selection(self, index: int) -> Selection:
        """The distinct selection at `index`, which counts from 0.

        Raises:
            IndexError: if there are not that many.
        """
        for block in self._blocks:
            if index < block.size:
                return block.selection(self, index)
            index -= block.size
        raise IndexError(index)

    @cached_property
    def _blocks(self) -> tuple[_Block, ...]:
        return tuple(
            _Block(backend, self.pool, tuple(self._active_choices(backend)))
            for backend in self.pool.backends
            if backend in self.backend.entries
        )

    def _active_choices(self, backend: Backend) -> Iterator[Sequence[Mapping[str, JsonValue]]]:
        """Independent groups of knobs for one backend, each as its distinct partial choices."""
        by_name = {
            knob.name: knob for knob in self.knobs if knob.name not in self.ignored.get(backend, ())
        }
        grouped = {"router_mode", *ROUTER_WEIGHTS, *OFFLOAD_WEIGHTS, *PLANNER_COMPOSITES}
        yield _router_choices(by_name)
        yield _planner_choices(by_name)
        for name, knob in by_name.items():
            if name not in grouped:
                yield [{name: entry} for entry in knob.entries]


@dataclass(frozen=True)
class _Block:
    """The distinct selections of one backend, in mixed radix over its configurations and groups."""

    backend: Backend
    pool: ParallelPool
    groups: tuple[Sequence[Mapping[str, JsonValue]], ...]

    @property
    def size(self) -> int:
        return math.prod((self.pool.count(self.backend), *map(len, self.groups)))

    @cached_property
    def _configs(self) -> NDArray[np.intp]:
        """Where they are in the pool. Only a branch that is evaluated as a whole asks for that."""
        return self.pool.legal_indices(self.backend)

    def selection(self, space: BranchSpace, index: int) -> Selection:
        index, position = divmod(index, len(self._configs))
        chosen: dict[str, JsonValue] = {}
        for group in self.groups:
            index, at = divmod(index, len(group))
            chosen |= group[at]
        assert not isinstance(space.kv_load, tuple)  # noqa: S101  # ranges are not counted
        config = space.pool[int(self._configs[position])]
        return Selection(space.mode, self.backend, config, chosen, space.kv_load)


def _entry(knob: Knob, assignment: Assignment) -> JsonValue:
    """The entry that a proposal chooses; a knob that leaves no choice is not proposed."""
    return knob.entry(assignment[knob.name]) if knob.name in assignment else knob.entries[0]


def _product(knobs: Sequence[Knob]) -> Iterator[dict[str, JsonValue]]:
    for entries in itertools.product(*(knob.entries for knob in knobs)):
        yield {knob.name: entry for knob, entry in zip(knobs, entries, strict=True)}


def _router_choices(knobs: Mapping[str, Knob]) -> list[dict[str, JsonValue]]:
    weights = [knobs[name] for name in (*ROUTER_WEIGHTS, *OFFLOAD_WEIGHTS) if name in knobs]
    choices: list[dict[str, JsonValue]] = []
    for mode in knobs["router_mode"].entries:
        # Round robin has no weights: it is one choice whatever they are.
        active = weights if mode == "kv_router" else []
        choices += [{"router_mode": mode, **chosen} for chosen in _product(active)]
    return choices


def _planner_choices(knobs: Mapping[str, Knob]) -> list[dict[str, JsonValue]]:
    # A preset and a mapping, or two mappings, may be written differently and do the same.
    distinct: dict[str, dict[str, JsonValue]] = {}
    for policy in knobs["planner_scaling_policy"].entries:
        assert isinstance(policy, str | dict)  # noqa: S101  # validated with the configuration
        names = PLANNER_COMPOSITES[1:] if scales(policy) else ()
        active = [knobs[name] for name in names if name in knobs]
        for chosen in _product(active):
            choice: dict[str, JsonValue] = {"planner_scaling_policy": policy, **chosen}
            distinct.setdefault(planner_effect(choice), choice)
    return list(distinct.values())

"""Latent parallel parameters of a study, and their projection onto the pool.

The sampler never sees a configuration's index. It proposes resource ratios, GPUs per engine and
modes; the nearest configuration that the chosen backend can run takes the proposal's place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from schemas.search_space import Backend, Role
from spica_async.space.parameters import (
    Assignment,
    CategoricalParameter,
    DiscreteParameter,
    FloatParameter,
    Parameter,
    ParameterValue,
)
from spica_async.space.pool import (
    Kind,
    ParallelConfig,
    ParallelPool,
    Replicas,
    RoleDeployment,
)
from spica_async.space.shapes import ParallelShape

USED_GPU_RATIO = "used_gpu_ratio"
PREFILL_GPU_SHARE = "prefill_gpu_share"
_DEFAULT_USED_GPU_RATIO = 1.0
_DEFAULT_PREFILL_GPU_SHARE = 0.5
# Sums of squares in another order differ in their last bits; such distances count as equal.
_SAME_DISTANCE = 1e-12

Numbers = NDArray[np.float64]


def engine_size(role: Role) -> str:
    """The parameter that asks for a role's GPUs per engine."""
    return f"{role}_num_gpus_per_engine_target"


def attention_mode(role: Role) -> str:
    """The parameter that asks for a role's attention mode."""
    return f"{role}_attention_mode"


def ffn_mode(role: Role) -> str:
    """The parameter that asks for a role's FFN mode."""
    return f"{role}_ffn_mode"


@dataclass(frozen=True, slots=True)
class Projection:
    """What a latent request came to.

    Attributes:
        config: the configuration that takes its place.
        requested: the latent values asked for.
        actual: the same features of `config`.
        distance: the sum of squared normalised differences of the numeric features.
        mode_projected: whether no configuration has all the requested modes.
    """

    config: ParallelConfig
    requested: Assignment
    actual: Assignment
    distance: float
    mode_projected: bool

    def as_metadata(self) -> dict[str, JsonValue]:
        """The record kept with the trial as `spica_projection`."""
        return {
            "requested": dict(self.requested),
            "actual": dict(self.actual),
            "distance": self.distance,
            "mode_projected": self.mode_projected,
            "config": {
                role: {
                    "tp": deployment.shape.tp,
                    "attention_dp": deployment.shape.attention_dp,
                    "moe_tp": deployment.shape.moe_tp,
                    "moe_ep": deployment.shape.moe_ep,
                    "replicas": deployment.replicas,
                }
                for role, deployment in self.config.roles
            },
        }


class ParallelConfigProjector:
    """The latent features of one pool, and the nearest configuration to a request.

    It never looks at the whole pool, which may have millions of configurations: those of one kind
    differ in their replicas alone, and only those within the best distance so far are measured.
    """

    def __init__(self, pool: ParallelPool, *, gpu_budget: int) -> None:
        if not len(pool):
            raise ValueError("the pool is empty: there is nothing to project onto")
        self._pool = pool
        self._gpu_budget = gpu_budget
        self._legal: dict[Backend, tuple[tuple[Kind, ...], dict[str, float]]] = {}
        self._has_share = "prefill" in pool.roles
        self._experts = {
            role
            for at, role in enumerate(pool.roles)
            if any(k.shapes[at].moe_tp > 1 or k.shapes[at].moe_ep > 1 for k in pool.kinds)
        }

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The latent parameters that can vary; none for a pool of one configuration."""
        kinds = self._pool.kinds
        spread = self._spread(kinds)
        made = [_ratio_parameter(name, *bounds) for name, bounds in spread.items()]
        for at, role in enumerate(self._pool.roles):
            made.append(_size_parameter(engine_size(role), {k.shapes[at].gpus for k in kinds}))
        for at, role in enumerate(self._pool.roles):
            shapes = {kind.shapes[at] for kind in kinds}
            found: set[str] = {shape.attention_mode for shape in shapes}
            made.append(_mode_parameter(attention_mode(role), found))
            if role in self._experts:
                found = {shape.ffn_mode for shape in shapes}
                made.append(_mode_parameter(ffn_mode(role), found))
        return tuple(parameter for parameter in made if parameter is not None)

    def project(self, request: Mapping[str, ParameterValue], backend: Backend) -> Projection:
        """The configuration of `backend` with the fewest wrong modes that is nearest in numbers.

        Features that `request` leaves out are constant over the pool and decide nothing.

        Raises:
            ValueError: if no configuration of the pool is legal for `backend`.
        """
        wanted = self._wanted(request, backend)
        mismatches = [
            sum(
                label != request.get(name, label)
                for name, label in self._modes(kind.shapes).items()
            )
            for kind in wanted.kinds
        ]
        fewest = min(mismatches)
        nearest = _Nearest(self._pool.roles)
        considered = [
            (sum(wanted.size_terms(kind)), at, kind)
            for at, (kind, wrong) in enumerate(zip(wanted.kinds, mismatches, strict=True))
            if wrong == fewest
        ]
        for sizes, _, kind in sorted(considered, key=lambda one: one[:2]):
            room = nearest.distance + _SAME_DISTANCE - sizes
            if room < 0:
                break
            some = self._pool.near(kind, *wanted.aim)
            room = min(room, wanted.distances(kind, some).min() + _SAME_DISTANCE - sizes)
            replicas = self._pool.within(kind, *wanted.bounds(room))
            nearest.consider(kind, replicas, wanted.distances(kind, replicas))
        config, distance = nearest.found()
        return Projection(
            config=config,
            requested={name: request[name] for name in self.features(config) if name in request},
            actual=self.features(config),
            distance=distance,
            mode_projected=fewest > 0,
        )

    def features(self, config: ParallelConfig) -> Assignment:
        """The latent features of a configuration: its numbers, then its modes."""
        used = [deployment.used_gpus for _, deployment in config.roles]
        shapes = tuple(deployment.shape for _, deployment in config.roles)
        found: Assignment = {USED_GPU_RATIO: sum(used) / self._gpu_budget}
        if self._has_share:
            found[PREFILL_GPU_SHARE] = used[0] / sum(used)
        sizes = zip(self._pool.roles, shapes, strict=True)
        found |= {engine_size(role): shape.gpus for role, shape in sizes}
        return found | self._modes(shapes)

    def _modes(self, shapes: Sequence[ParallelShape]) -> dict[str, str]:
        found: dict[str, str] = {}
        for role, shape in zip(self._pool.roles, shapes, strict=True):
            found[attention_mode(role)] = shape.attention_mode
            if role in self._experts:
                found[ffn_mode(role)] = shape.ffn_mode
        return found

    def _wrong_modes(self, kind: Kind, request: Mapping[str, ParameterValue]) -> int:
        modes = self._modes(kind.shapes)
        return sum(request.get(name, label) != label for name, label in modes.items())

    def _spread(self, kinds: Iterable[Kind]) -> dict[str, tuple[float, float]]:
        """The least and the largest of each ratio."""
        used = [gpus / self._gpu_budget for kind in kinds for gpus in kind.used_gpus]
        found = {USED_GPU_RATIO: (min(used), max(used))}
        if self._has_share:
            shares = [share for kind in kinds for share in kind.first_share]
            found[PREFILL_GPU_SHARE] = (min(shares), max(shares))
        return found

    def _wanted(self, request: Mapping[str, ParameterValue], backend: Backend) -> _Wanted:
        """A request beside what a backend can run, which is worked out once."""
        if backend not in self._legal:
            kinds = tuple(kind for kind in self._pool.kinds if backend in kind.backends)
            if not kinds:
                raise ValueError(f"no configuration of the pool is legal for {backend}")
            spans = {name: high - low for name, (low, high) in self._spread(kinds).items()}
            for at, role in enumerate(self._pool.roles):
                sizes = [np.log2(kind.shapes[at].gpus) for kind in kinds]
                spans[engine_size(role)] = float(max(sizes) - min(sizes))
            self._legal[backend] = kinds, spans
        kinds, spans = self._legal[backend]
        asked = {name: float(request[name]) for name in spans if name in request and spans[name]}
        return _Wanted(self._pool.roles, self._gpu_budget, kinds, spans, asked)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The numbers of a request, and how far a backend's configurations are from them.

    Attributes:
        roles: of the pool.
        gpu_budget: the GPUs of a ratio of 1.
        kinds: that the backend can run.
        spans: how far each number of these is apart.
        asked: the numbers that decide, by name.
    """

    roles: tuple[Role, ...]
    gpu_budget: int
    kinds: tuple[Kind, ...]
    spans: Mapping[str, float]
    asked: Mapping[str, float]

    @property
    def aim(self) -> tuple[float, float]:
        """The GPUs of a configuration that is asked for, and the first role's share of them."""
        used = self.asked.get(USED_GPU_RATIO, _DEFAULT_USED_GPU_RATIO) * self.gpu_budget
        return used, self.asked.get(PREFILL_GPU_SHARE, _DEFAULT_PREFILL_GPU_SHARE)

    def bounds(self, room: float) -> tuple[tuple[float, float], tuple[float, float]]:
        """The GPUs and the share beyond which a configuration is farther than `room` in either."""
        radius = math.sqrt(max(room, 0.0) + _SAME_DISTANCE)
        low, high = self._bounds(USED_GPU_RATIO, radius)
        return (low * self.gpu_budget, high * self.gpu_budget), self._bounds(
            PREFILL_GPU_SHARE, radius
        )

    def _bounds(self, name: str, radius: float) -> tuple[float, float]:
        if name not in self.asked:
            return 0.0, math.inf
        reach = radius * self.spans[name]
        return self.asked[name] - reach, self.asked[name] + reach

    def size_terms(self, kind: Kind) -> list[float]:
        """What each role's GPUs per engine add to the distance."""
        named = [
            (engine_size(role), shape) for role, shape in zip(self.roles, kind.shapes, strict=True)
        ]
        return [
            float(((np.log2(shape.gpus) - np.log2(self.asked[name])) / self.spans[name]) ** 2)
            for name, shape in named
            if name in self.asked
        ]

    def distances(self, kind: Kind, replicas: Replicas) -> Numbers:
        """Shape (configurations,): the sum of the squared normalised differences."""
        used = replicas * np.array([shape.gpus for shape in kind.shapes])
        total = used.sum(axis=1)
        numbers = {
            USED_GPU_RATIO: total / self.gpu_budget,
            PREFILL_GPU_SHARE: used[:, 0] / total,
        }
        found = np.zeros(len(replicas), dtype=np.float64)
        for name, values in numbers.items():
            if name in self.asked:
                found += ((values - self.asked[name]) / self.spans[name]) ** 2
        for term in self.size_terms(kind):
            found += term
        return found


class _Nearest:
    """Keeps the nearest configurations of all that were measured."""

    def __init__(self, roles: tuple[Role, ...]) -> None:
        self.distance = math.inf
        self._roles = roles
        self._measured: list[tuple[Kind, Replicas, Numbers]] = []

    def consider(self, kind: Kind, replicas: Replicas, distances: Numbers) -> None:
        """Measure some of a kind."""
        if len(distances):
            self.distance = min(self.distance, float(distances.min()))
            self._measured.append((kind, replicas, distances))

    def found(self) -> tuple[ParallelConfig, float]:
        """The smallest of the nearest ones, by shapes and replicas, and how far it is."""
        equal = [
            (tuple(zip(kind.shapes, map(int, row), strict=True)), float(distance))
            for kind, replicas, distances in self._measured
            for row, distance in _rows_up_to(replicas, distances, self.distance + _SAME_DISTANCE)
        ]
        deployments, distance = min(equal)
        config = zip(self._roles, (RoleDeployment(*one) for one in deployments), strict=True)
        return ParallelConfig(tuple(config)), distance


def _rows_up_to(
    replicas: Replicas, distances: Numbers, most: float
) -> Iterator[tuple[NDArray[np.int64], np.float64]]:
    near = distances <= most
    return zip(replicas[near], distances[near], strict=True)


def _ratio_parameter(name: str, low: float, high: float) -> Parameter | None:
    if low == high:
        return None
    wanted = _DEFAULT_USED_GPU_RATIO if name == USED_GPU_RATIO else _DEFAULT_PREFILL_GPU_SHARE
    return FloatParameter(name, low, high, default=min(max(wanted, low), high))


def _size_parameter(name: str, found: AbstractSet[int]) -> Parameter | None:
    sizes = tuple(sorted(found))
    if len(sizes) == 1:
        return None
    return DiscreteParameter(name, sizes, log=True, default=_geometric_centre(sizes))


def _mode_parameter(name: str, found: AbstractSet[str]) -> Parameter | None:
    # The default of each kind: attention over TP, experts over EP.
    preferred = ("tp", "dp") if name.endswith("attention_mode") else ("ep", "tp")
    present = tuple(mode for mode in preferred if mode in found)
    if len(present) == 1:
        return None
    return CategoricalParameter(name, present, default=present[0])


def _geometric_centre(sizes: tuple[int, ...]) -> int:
    """The size nearest, in log space, to the geometric mean of the ends; a tie goes to the smaller.

    Compared in exact integers: `size / centre` against `centre / size` with the ends' product.
    """
    product = sizes[0] * sizes[-1]

    def off_centre(size: int) -> float:
        square = size * size
        return max(square, product) / min(square, product)

    return min(sizes, key=lambda size: (off_centre(size), size))

"""How far the configurations of a pool are from what is asked for, and which is the nearest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas.search_space import Role
from spica_async.space.features import (
    DEFAULT_PREFILL_GPU_SHARE,
    DEFAULT_USED_GPU_RATIO,
    PREFILL_GPU_SHARE,
    SAME_DISTANCE,
    USED_GPU_RATIO,
    engine_size,
)
from spica_async.space.pool import Kind, ParallelConfig, Replicas, RoleDeployment

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Wanted:
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
        used = self.asked.get(USED_GPU_RATIO, DEFAULT_USED_GPU_RATIO) * self.gpu_budget
        return used, self.asked.get(PREFILL_GPU_SHARE, DEFAULT_PREFILL_GPU_SHARE)

    def bounds(self, room: float) -> tuple[tuple[float, float], tuple[float, float]]:
        """The GPUs and the share beyond which a configuration is farther than `room` in either."""
        radius = math.sqrt(max(room, 0.0) + SAME_DISTANCE)
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


class Nearest:
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
            for row, distance in _rows_up_to(replicas, distances, self.distance + SAME_DISTANCE)
        ]
        deployments, distance = min(equal)
        config = zip(self._roles, (RoleDeployment(*one) for one in deployments), strict=True)
        return ParallelConfig(tuple(config)), distance


def _rows_up_to(
    replicas: Replicas, distances: Numbers, most: float
) -> Iterator[tuple[NDArray[np.int64], np.float64]]:
    near = distances <= most
    return zip(replicas[near], distances[near], strict=True)

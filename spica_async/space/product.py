"""The pool of every combination of shapes and replicas within a budget of GPUs.

A disaggregated pool pairs every prefill deployment with every decode deployment, which makes
millions of configurations under a large budget. So it is held, sent and searched as the shapes
that they are made of.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from schemas.search_space import Backend, Role
from spica_async.space.pool import (
    BoolArray,
    IndexArray,
    Kind,
    ParallelPool,
    Replicas,
    RoleDeployment,
)
from spica_async.space.shapes import ParallelShape

_MAX_COMBINATIONS: Final = 30_000_000
_MAX_DEPLOYMENTS: Final = 1_000_000
"""Of one role; beyond any cluster, and each is an object while a sweep is planned."""
# Bounds are worked out in floats, and one configuration more does no harm.
_MARGIN: Final = 1e-6

_PARTS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)

ShapesByRole = Mapping[Role, AbstractSet[ParallelShape]]
Integers = NDArray[np.int64]


class PoolTooLargeError(Exception):
    """More combinations of both roles than can be searched."""


@dataclass(frozen=True)
class ProductPool(ParallelPool):
    """Every combination of shapes and replicas within the GPU limits that some backend can run.

    Attributes:
        roles: see `ParallelPool`.
        backends: see `ParallelPool`.
        shapes: for each backend, the shapes that it can run in each role, ascending.
        min_gpus: of one configuration, all roles together.
        max_gpus: likewise.
    """

    roles: tuple[Role, ...]
    backends: tuple[Backend, ...]
    shapes: tuple[tuple[tuple[ParallelShape, ...], ...], ...]
    min_gpus: int
    max_gpus: int

    @cached_property
    def deployments(self) -> tuple[tuple[RoleDeployment, ...], ...]:
        """See `ParallelPool`."""
        return tuple(
            tuple(
                RoleDeployment(shape, replicas)
                for shape in self._shapes_of(position)
                for replicas in range(1, self.max_gpus // shape.gpus + 1)
            )
            for position in range(len(self.roles))
        )

    @cached_property
    def indices(self) -> IndexArray:
        """See `ParallelPool`."""
        return np.concatenate([np.empty((0, len(self.roles)), np.int32), *self.index_blocks()])

    @cached_property
    def legal(self) -> BoolArray:
        """See `ParallelPool`."""
        return np.concatenate([np.empty((0, len(self.backends)), np.bool_), *self.legal_blocks()])

    def index_blocks(self) -> Iterator[IndexArray]:
        """See `ParallelPool`; without ever holding all of them at once."""
        for first, rest, _ in self._blocks():
            yield np.stack([np.broadcast_to(first, rest.shape), rest], axis=1)[
                :, : len(self.roles)
            ].astype(np.int32)

    def legal_blocks(self) -> Iterator[BoolArray]:
        """See `ParallelPool`."""
        for _, _, legal in self._blocks():
            yield legal

    def _blocks(self) -> Iterator[tuple[Integers, Integers, BoolArray]]:
        """For one deployment of the first role after the other, the rows that it begins.

        Where it is the only role, they come all at once.
        """
        used = [np.array([o.used_gpus for o in options], np.int64) for options in self.deployments]
        runs = [
            np.array(
                [[o.shape in shapes[position] for shapes in self.shapes] for o in options], np.bool_
            ).reshape(len(options), len(self.backends))
            for position, options in enumerate(self.deployments)
        ]
        if len(self.roles) == 1:
            kept = np.flatnonzero(
                (used[0] >= self.min_gpus) & (used[0] <= self.max_gpus) & runs[0].any(axis=1)
            )
            yield kept, kept, runs[0][kept]
            return
        for at in range(len(used[0])):
            total = used[1] + used[0][at]
            legal = runs[1] & runs[0][at]
            kept = np.flatnonzero(
                (total >= self.min_gpus) & (total <= self.max_gpus) & legal.any(axis=1)
            )
            yield np.int64(at) * np.ones(1, np.int64), kept, legal[kept]

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """See `ParallelPool`."""
        found = []
        for shapes in itertools.product(*(self._shapes_of(at) for at in range(len(self.roles)))):
            backends = frozenset(
                backend
                for backend, runs in zip(self.backends, self.shapes, strict=True)
                if all(shape in runs[at] for at, shape in enumerate(shapes))
            )
            kind = self._kind(shapes, backends) if backends else None
            if kind is not None:
                found.append(kind)
        return tuple(found)

    def near(self, kind: Kind, used_gpus: float, first_share: float) -> Replicas:
        """See `ParallelPool`."""
        gpus = kind.shapes[0].gpus
        if len(self.roles) == 1:
            low, high = kind.used_gpus[0] // gpus, kind.used_gpus[1] // gpus
            at = min(max(used_gpus / gpus, low), high)
            return np.unique(np.clip([math.floor(at), math.ceil(at)], low, high))[:, None]
        first, low_second, high_second = self._rows(kind.shapes)
        used, of_second = first * gpus, kind.shapes[1].gpus
        # Beside each number of the first role's replicas: what comes to the total, what comes to
        # the share, and some between them.
        total, share = (used_gpus - used) / of_second, used * (1 / first_share - 1) / of_second
        second = [
            np.clip(np.round(total + part * (share - total)), low_second, high_second)
            for part in _PARTS
        ]
        second = [replicas.astype(np.int64) for replicas in second]
        return np.stack([np.tile(first, len(second)), np.concatenate(second)], axis=1)

    def within(
        self, kind: Kind, used_gpus: tuple[float, float], first_share: tuple[float, float]
    ) -> Replicas:
        """See `ParallelPool`."""
        gpus = kind.shapes[0].gpus
        least, most = max(used_gpus[0], self.min_gpus), min(used_gpus[1], self.max_gpus)
        if len(self.roles) == 1:
            fewest = max(1, math.ceil(least / gpus - _MARGIN))
            return np.arange(fewest, math.floor(most / gpus + _MARGIN) + 1, dtype=np.int64)[:, None]
        first, low_second, high_second = self._rows(kind.shapes)
        used, of_second = first * gpus, kind.shapes[1].gpus
        low = np.maximum(low_second, np.ceil((least - used) / of_second - _MARGIN))
        high = np.minimum(high_second, np.floor((most - used) / of_second + _MARGIN))
        smallest, largest = first_share
        if largest <= 0 or smallest >= 1:
            return np.empty((0, 2), np.int64)
        low = np.maximum(low, np.ceil(used * (1 / largest - 1) / of_second - _MARGIN))
        if smallest > 0:
            high = np.minimum(high, np.floor(used * (1 / smallest - 1) / of_second + _MARGIN))
        counts = np.maximum(0, high - low + 1).astype(np.int64)
        begins = np.repeat(low.astype(np.int64) - np.cumsum(counts) + counts, counts)
        return np.stack([np.repeat(first, counts), begins + np.arange(counts.sum())], axis=1)

    def _rows(self, shapes: tuple[ParallelShape, ...]) -> tuple[Integers, Integers, Integers]:
        """Replicas of the first of two roles, and for each the fewest and most of the second."""
        one, other = (shape.gpus for shape in shapes)
        first = np.arange(1, self.max_gpus // one + 1, dtype=np.int64)
        low = np.maximum(1, -((first * one - self.min_gpus) // other))
        high = (self.max_gpus - first * one) // other
        there = low <= high
        return first[there], low[there], high[there]

    def _kind(self, shapes: tuple[ParallelShape, ...], backends: frozenset[Backend]) -> Kind | None:
        gpus = shapes[0].gpus
        if len(shapes) == 1:
            low, high = -(-self.min_gpus // gpus), self.max_gpus // gpus
            if high < max(low, 1):
                return None
            used = (max(low, 1) * gpus, high * gpus)
            return Kind(shapes, backends, high - max(low, 1) + 1, used, (1.0, 1.0))
        first, low_second, high_second = self._rows(shapes)
        if not len(first):
            return None
        of_first, of_second = first * gpus, shapes[1].gpus
        fewest, most = of_first + low_second * of_second, of_first + high_second * of_second
        return Kind(
            shapes,
            backends,
            int((high_second - low_second + 1).sum()),
            (int(fewest.min()), int(most.max())),
            (float((of_first / most).min()), float((of_first / fewest).max())),
        )

    def _shapes_of(self, position: int) -> list[ParallelShape]:
        """The shapes that some backend can run in a role, ascending."""
        return sorted({shape for shapes in self.shapes for shape in shapes[position]})


def enumerate_pool(
    roles: Sequence[Role],
    shapes: Mapping[Backend, ShapesByRole],
    *,
    gpu_budget: int,
    min_gpu_budget: int = 1,
) -> ProductPool:
    """Every combination of shapes and replicas within the GPU limits that some backend can run.

    Args:
        roles: the mode's roles.
        shapes: the shapes that each backend can run in each role.
        gpu_budget: most GPUs of one configuration, all roles together.
        min_gpu_budget: fewest GPUs of one configuration, all roles together.

    Raises:
        PoolTooLargeError: if the budget allows too many.
    """
    deployments = [
        sum(
            gpu_budget // shape.gpus
            for shape in {shape for by_role in shapes.values() for shape in by_role[role]}
        )
        for role in roles
    ]
    if max(deployments, default=0) > _MAX_DEPLOYMENTS:
        raise PoolTooLargeError(
            f"{max(deployments):,} deployments of one role, more than {_MAX_DEPLOYMENTS:,}"
        )
    combinations = math.prod(deployments)
    if combinations > _MAX_COMBINATIONS:
        raise PoolTooLargeError(f"{combinations:,} combinations, more than {_MAX_COMBINATIONS:,}")
    return ProductPool(
        roles=tuple(roles),
        backends=tuple(shapes),
        shapes=tuple(
            tuple(tuple(sorted(by_role[role])) for role in roles) for by_role in shapes.values()
        ),
        min_gpus=min_gpu_budget,
        max_gpus=gpu_budget,
    )

"""The pool of parallel configurations of one branch, and which backends can run each.

A disaggregated pool pairs every prefill deployment with every decode deployment, which makes
millions of configurations under a large budget: it is held as arrays of indices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.search_space import Backend, Role
from spica_async.space.shapes import ParallelShape

IndexArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, order=True, slots=True)
class RoleDeployment:
    """One role's worker shape and how many replicas of it."""

    shape: ParallelShape
    replicas: int

    @property
    def used_gpus(self) -> int:
        """GPUs of all replicas."""
        return self.shape.gpus * self.replicas


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """What each role of one deployment runs: `agg`, or `prefill` and `decode`."""

    roles: tuple[tuple[Role, RoleDeployment], ...]

    @property
    def used_gpus(self) -> int:
        """GPUs of all roles."""
        return sum(deployment.used_gpus for _, deployment in self.roles)

    def __getitem__(self, role: Role) -> RoleDeployment:
        return dict(self.roles)[role]

    def __str__(self) -> str:
        return ", ".join(
            f"{role} {deployment.replicas} x ({deployment.shape})"
            for role, deployment in self.roles
        )


@dataclass(frozen=True)
class ParallelPool:
    """Configurations in ascending lexicographic order of their shapes and replicas.

    Attributes:
        roles: the mode's roles, in order.
        deployments: the distinct deployments of each role, ascending.
        indices: shape (configurations, roles), into `deployments`.
        backends: the backends of the union.
        legal: shape (configurations, backends), whether a backend can run a configuration.
    """

    roles: tuple[Role, ...]
    deployments: tuple[tuple[RoleDeployment, ...], ...]
    indices: IndexArray
    backends: tuple[Backend, ...]
    legal: BoolArray

    def __getstate__(self) -> dict[str, Any]:
        """Without what is derived: it may be larger than all else, and is made again on demand."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> ParallelConfig:
        chosen = zip(self.roles, self.deployments, self.indices[index], strict=True)
        return ParallelConfig(tuple((role, options[at]) for role, options, at in chosen))

    def index(self, config: ParallelConfig) -> int:
        """The position of a configuration.

        Raises:
            ValueError: if it is not in the pool.
        """
        found = np.ones(len(self), dtype=np.bool_)
        for column, options, (_, deployment) in zip(
            self.indices.T, self.deployments, config.roles, strict=True
        ):
            found &= column == (options.index(deployment) if deployment in options else -1)
        if not found.any():
            raise ValueError(f"not in the pool: {config}")
        return int(found.argmax())

    def legal_indices(self, backend: Backend) -> NDArray[np.intp]:
        """Positions in the pool of the configurations that `backend` can run, ascending."""
        return np.flatnonzero(self.legal[:, self.backends.index(backend)])

    @cached_property
    def used_gpus(self) -> NDArray[np.int64]:
        """Shape (configurations,): GPUs of each configuration."""
        used = self.role_values(lambda deployment: deployment.used_gpus)
        return np.asarray(used.sum(axis=1), dtype=np.int64)

    def role_values(self, value: Callable[[RoleDeployment], int]) -> NDArray[np.int64]:
        """Shape (configurations, roles): an integer of each role's deployment."""
        columns = [
            np.array([value(deployment) for deployment in options], dtype=np.int64)[
                self.indices[:, position]
            ]
            for position, options in enumerate(self.deployments)
        ]
        return np.stack(columns, axis=1)


class PoolTooLargeError(Exception):
    """More combinations of both roles than can be held and searched."""


_MAX_COMBINATIONS = 30_000_000
_MAX_DEPLOYMENTS = 1_000_000
ShapesByRole = Mapping[Role, AbstractSet[ParallelShape]]


def enumerate_pool(
    roles: Sequence[Role],
    shapes: Mapping[Backend, ShapesByRole],
    *,
    gpu_budget: int,
    min_gpu_budget: int = 1,
) -> ParallelPool:
    """Every combination of shapes and replicas within the GPU limits that some backend can run.

    Args:
        roles: the mode's roles.
        shapes: the shapes that each backend can run in each role.
        gpu_budget: most GPUs of one configuration, all roles together.
        min_gpu_budget: fewest GPUs of one configuration, all roles together.

    Raises:
        PoolTooLargeError: if the budget allows too many.
    """
    backends = tuple(shapes)
    by_role = {
        role: {shape for found in shapes.values() for shape in found[role]} for role in roles
    }
    # Counted before they are made: a budget may be any number.
    options = [sum(gpu_budget // shape.gpus for shape in by_role[role]) for role in roles]
    combinations = math.prod(options)
    if max(options) > _MAX_DEPLOYMENTS:
        raise PoolTooLargeError(f"{max(options):,} of one role, more than {_MAX_DEPLOYMENTS:,}")
    if combinations > _MAX_COMBINATIONS:
        raise PoolTooLargeError(f"{combinations:,} combinations, more than {_MAX_COMBINATIONS:,}")
    deployments = tuple(_deployments(by_role[role], gpu_budget) for role in roles)
    grid = np.indices([len(options) for options in deployments], dtype=np.int32)
    indices = grid.reshape(len(deployments), -1).T
    used = np.zeros(len(indices), dtype=np.int64)
    legal = np.ones((len(indices), len(backends)), dtype=np.bool_)
    for position, (role, deployed) in enumerate(zip(roles, deployments, strict=True)):
        column = indices[:, position]
        used += np.array([option.used_gpus for option in deployed], dtype=np.int64)[column]
        by_option = [[option.shape in shapes[b][role] for b in backends] for option in deployed]
        legal &= np.array(by_option, dtype=np.bool_).reshape(len(deployed), len(backends))[column]
    kept = (used >= min_gpu_budget) & (used <= gpu_budget) & legal.any(axis=1)
    return ParallelPool(tuple(roles), deployments, indices[kept], backends, legal[kept])


def menu_pool(
    roles: Sequence[Role], menu: Mapping[ParallelConfig, AbstractSet[Backend]]
) -> ParallelPool:
    """A pool of just the configurations that a person listed, with the backends of each."""
    configs = sorted(menu, key=lambda config: tuple(config[role] for role in roles))
    backends = tuple(sorted({backend for legal in menu.values() for backend in legal}))
    deployments = tuple(tuple(sorted({config[role] for config in configs})) for role in roles)
    indices = np.array(
        [
            [options.index(config[role]) for role, options in zip(roles, deployments, strict=True)]
            for config in configs
        ],
        dtype=np.int32,
    ).reshape(len(configs), len(roles))
    legal = np.array(
        [[backend in menu[config] for backend in backends] for config in configs], dtype=np.bool_
    ).reshape(len(configs), len(backends))
    return ParallelPool(tuple(roles), deployments, indices, backends, legal)


def _deployments(shapes: AbstractSet[ParallelShape], gpu_budget: int) -> tuple[RoleDeployment, ...]:
    return tuple(
        RoleDeployment(shape, replicas)
        for shape in sorted(shapes)
        for replicas in range(1, gpu_budget // shape.gpus + 1)
    )

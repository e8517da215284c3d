"""The pool of parallel configurations of one branch, and which backends can run each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from schemas.search_space import Backend, Role
from spica_async.space.shapes import ParallelShape

IndexArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]
Replicas = NDArray[np.int64]
"""Of shape (configurations, roles)."""


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


@dataclass(frozen=True, slots=True)
class Kind:
    """Configurations of a pool that differ in their replicas alone, and run on the same backends.

    Attributes:
        shapes: of each role.
        backends: that can run them.
        count: how many there are, at least one.
        used_gpus: the fewest and the most GPUs of one.
        first_share: the least and the largest part of its GPUs that the first role has.
    """

    shapes: tuple[ParallelShape, ...]
    backends: frozenset[Backend]
    count: int
    used_gpus: tuple[int, int]
    first_share: tuple[float, float]


class ParallelPool(ABC):
    """Configurations in ascending lexicographic order of their shapes and replicas.

    What a search asks while it runs is answered from `kinds`, of which there are some hundreds in
    the largest pool. `indices` and `legal` are as long as the pool: they are for planning.

    Attributes:
        roles: the mode's roles, in order.
        backends: the backends of the union.
    """

    roles: tuple[Role, ...]
    backends: tuple[Backend, ...]

    @property
    @abstractmethod
    def deployments(self) -> tuple[tuple[RoleDeployment, ...], ...]:
        """The distinct deployments of each role, ascending."""

    @property
    @abstractmethod
    def indices(self) -> IndexArray:
        """Shape (configurations, roles), into `deployments`."""

    @property
    @abstractmethod
    def legal(self) -> BoolArray:
        """Shape (configurations, backends), whether a backend can run a configuration."""

    def index_blocks(self) -> Iterator[IndexArray]:
        """The rows of `indices` in order, some at a time."""
        yield self.indices

    def legal_blocks(self) -> Iterator[BoolArray]:
        """The rows of `legal`, likewise."""
        yield self.legal

    @property
    @abstractmethod
    def kinds(self) -> tuple[Kind, ...]:
        """All configurations by what they have in common."""

    @abstractmethod
    def near(self, kind: Kind, used_gpus: float, first_share: float) -> Replicas:
        """Some configurations of a kind, at least one, about as near to these as any of it."""

    @abstractmethod
    def within(
        self, kind: Kind, used_gpus: tuple[float, float], first_share: tuple[float, float]
    ) -> Replicas:
        """The configurations of a kind between these bounds; it may be more."""

    def __len__(self) -> int:
        return sum(kind.count for kind in self.kinds)

    def count(self, backend: Backend) -> int:
        """How many configurations `backend` can run."""
        return sum(kind.count for kind in self.kinds if backend in kind.backends)

    def __contains__(self, config: object) -> bool:
        if not isinstance(config, ParallelConfig):
            return False
        shapes = tuple(deployment.shape for _, deployment in config.roles)
        wanted = [deployment.replicas for _, deployment in config.roles]
        used = (config.used_gpus, config.used_gpus)
        return any(
            (self.within(kind, used, kind.first_share) == wanted).all(axis=1).any()
            for kind in self.kinds
            if kind.shapes == shapes
        )

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


@dataclass(frozen=True)
class MenuPool(ParallelPool):
    """A pool of just the configurations that a person listed.

    Attributes:
        roles: see `ParallelPool`.
        backends: see `ParallelPool`.
        menu: the configurations in order, each with the backends that can run it.
    """

    roles: tuple[Role, ...]
    backends: tuple[Backend, ...]
    menu: tuple[tuple[ParallelConfig, frozenset[Backend]], ...]

    @cached_property
    def deployments(self) -> tuple[tuple[RoleDeployment, ...], ...]:
        """See `ParallelPool`."""
        return tuple(
            tuple(sorted({config[role] for config, _ in self.menu})) for role in self.roles
        )

    @cached_property
    def indices(self) -> IndexArray:
        """See `ParallelPool`."""
        rows = [
            [
                options.index(config[role])
                for role, options in zip(self.roles, self.deployments, strict=True)
            ]
            for config, _ in self.menu
        ]
        return np.array(rows, dtype=np.int32).reshape(len(self.menu), len(self.roles))

    @cached_property
    def legal(self) -> BoolArray:
        """See `ParallelPool`."""
        rows = [[backend in legal for backend in self.backends] for _, legal in self.menu]
        return np.array(rows, dtype=np.bool_).reshape(len(self.menu), len(self.backends))

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """See `ParallelPool`."""
        found = []
        for (shapes, legal), configs in self._by_kind.items():
            used = [config.used_gpus for config in configs]
            shares = [config.roles[0][1].used_gpus / config.used_gpus for config in configs]
            bounds = (min(used), max(used)), (min(shares), max(shares))
            found.append(Kind(shapes, legal, len(configs), *bounds))
        return tuple(found)

    def near(self, kind: Kind, used_gpus: float, first_share: float) -> Replicas:  # noqa: ARG002  # the port's
        """See `ParallelPool`."""
        configs = self._by_kind[kind.shapes, kind.backends]
        rows = [[deployment.replicas for _, deployment in config.roles] for config in configs]
        return np.array(rows, dtype=np.int64)

    def within(
        self,
        kind: Kind,
        used_gpus: tuple[float, float],
        first_share: tuple[float, float],
    ) -> Replicas:
        """See `ParallelPool`."""
        return self.near(kind, used_gpus[0], first_share[0])

    @cached_property
    def _by_kind(
        self,
    ) -> dict[tuple[tuple[ParallelShape, ...], frozenset[Backend]], list[ParallelConfig]]:
        found: dict[tuple[tuple[ParallelShape, ...], frozenset[Backend]], list[ParallelConfig]] = {}
        for config, legal in self.menu:
            shapes = tuple(deployment.shape for _, deployment in config.roles)
            found.setdefault((shapes, legal), []).append(config)
        return found


def menu_pool(
    roles: Sequence[Role], menu: Mapping[ParallelConfig, AbstractSet[Backend]]
) -> MenuPool:
    """A pool of just the configurations that a person listed, with the backends of each."""
    configs = sorted(menu, key=lambda config: tuple(config[role] for role in roles))
    backends = tuple(sorted({backend for legal in menu.values() for backend in legal}))
    return MenuPool(
        tuple(roles), backends, tuple((config, frozenset(menu[config])) for config in configs)
    )

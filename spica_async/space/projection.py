"""Latent parallel parameters of a study, and their projection onto the pool.

The sampler never sees a configuration's index. It proposes resource ratios, GPUs per engine and
modes; the nearest configuration that the chosen backend can run takes the proposal's place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from pydantic import JsonValue

from schemas.search_space import Backend
from spica_async.space.features import (
    DEFAULT_PREFILL_GPU_SHARE,
    DEFAULT_USED_GPU_RATIO,
    PREFILL_GPU_SHARE,
    SAME_DISTANCE,
    USED_GPU_RATIO,
    attention_mode,
    engine_size,
    ffn_mode,
)
from spica_async.space.nearest import Nearest, Wanted
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
)
from spica_async.space.shapes import ParallelShape


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
        mismatches = [self._wrong_modes(kind, request) for kind in wanted.kinds]
        fewest = min(mismatches)
        nearest = Nearest(self._pool.roles)
        considered = [
            (sum(wanted.size_terms(kind)), at, kind)
            for at, (kind, wrong) in enumerate(zip(wanted.kinds, mismatches, strict=True))
            if wrong == fewest
        ]
        for sizes, _, kind in sorted(considered, key=lambda one: one[:2]):
            room = nearest.distance + SAME_DISTANCE - sizes
            if room < 0:
                break
            some = self._pool.near(kind, *wanted.aim)
            room = min(room, wanted.distances(kind, some).min() + SAME_DISTANCE - sizes)
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

    def _wanted(self, request: Mapping[str, ParameterValue], backend: Backend) -> Wanted:
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
        return Wanted(self._pool.roles, self._gpu_budget, kinds, spans, asked)


def _ratio_parameter(name: str, low: float, high: float) -> Parameter | None:
    if low == high:
        return None
    wanted = DEFAULT_USED_GPU_RATIO if name == USED_GPU_RATIO else DEFAULT_PREFILL_GPU_SHARE
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

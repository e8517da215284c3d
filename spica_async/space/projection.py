"""Latent parallel parameters of a study, and their projection onto the pool.

The sampler never sees a configuration's index. It proposes resource ratios, GPUs per engine and
modes; the nearest configuration that the chosen backend can run takes the proposal's place.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from spica_async.space.pool import ParallelConfig, ParallelPool

USED_GPU_RATIO = "used_gpu_ratio"
PREFILL_GPU_SHARE = "prefill_gpu_share"
_DEFAULT_USED_GPU_RATIO = 1.0
_DEFAULT_PREFILL_GPU_SHARE = 0.5
# Sums of squares in another order differ in their last bits; such distances count as equal.
_SAME_DISTANCE = 1e-12

Labels = NDArray[np.str_]
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
    """The latent features of one pool, and the nearest configuration to a request."""

    def __init__(self, pool: ParallelPool, *, gpu_budget: int) -> None:
        if not len(pool):
            raise ValueError("the pool is empty: there is nothing to project onto")
        self._pool = pool
        self._numbers, self._modes = _features(pool, gpu_budget)
        self._scaled = {name: _scale(name, values) for name, values in self._numbers.items()}
        self._legal: dict[Backend, tuple[NDArray[np.intp], dict[str, float]]] = {}

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The latent parameters that can vary; none for a pool of one configuration."""
        made = [_numeric_parameter(name, values) for name, values in self._numbers.items()]
        made += [_mode_parameter(name, labels) for name, labels in self._modes.items()]
        return tuple(parameter for parameter in made if parameter is not None)

    def project(self, request: Mapping[str, ParameterValue], backend: Backend) -> Projection:
        """The configuration of `backend` with the fewest wrong modes that is nearest in numbers.

        Features that `request` leaves out are constant over the pool and decide nothing.

        Raises:
            ValueError: if no configuration of the pool is legal for `backend`.
        """
        legal, spans = self._legal_for(backend)
        mismatches = np.zeros(len(legal), dtype=np.int64)
        for name, labels in self._modes.items():
            if name in request:
                mismatches += labels[legal] != request[name]
        fewest = int(mismatches.min())
        survivors = legal[mismatches == fewest]
        distances = np.zeros(len(survivors), dtype=np.float64)
        for name, scaled in self._scaled.items():
            if name in request and spans[name] > 0:
                wanted = _scale(name, np.float64(request[name]))
                distances += ((scaled[survivors] - wanted) / spans[name]) ** 2
        # The pool ascends by shape and replicas, so the first of equals is the smallest of them.
        nearest = int(np.flatnonzero(distances <= distances.min() + _SAME_DISTANCE)[0])
        index = int(survivors[nearest])
        return Projection(
            config=self._pool[index],
            requested={name: request[name] for name in self._names() if name in request},
            actual=self.features(index),
            distance=float(distances[nearest]),
            mode_projected=fewest > 0,
        )

    def features(self, index: int) -> Assignment:
        """The latent features of the pool's configuration at `index`."""
        numbers: Assignment = {
            name: _plain(name, values[index]) for name, values in self._numbers.items()
        }
        return numbers | {name: str(labels[index]) for name, labels in self._modes.items()}

    def _legal_for(self, backend: Backend) -> tuple[NDArray[np.intp], dict[str, float]]:
        """What a backend can run, and how far the numbers of that are apart, worked out once."""
        if backend not in self._legal:
            legal = self._pool.legal_indices(backend)
            if not len(legal):
                raise ValueError(f"no configuration of the pool is legal for {backend}")
            spans = {name: float(np.ptp(scaled[legal])) for name, scaled in self._scaled.items()}
            self._legal[backend] = legal, spans
        return self._legal[backend]

    def _names(self) -> list[str]:
        return [*self._numbers, *self._modes]


def _features(pool: ParallelPool, gpu_budget: int) -> tuple[dict[str, Numbers], dict[str, Labels]]:
    used = pool.role_values(lambda deployment: deployment.used_gpus).astype(np.float64)
    sizes = pool.role_values(lambda deployment: deployment.shape.gpus).astype(np.float64)
    attention_dp = pool.role_values(lambda deployment: deployment.shape.attention_dp)
    moe_tp = pool.role_values(lambda deployment: deployment.shape.moe_tp)
    moe_ep = pool.role_values(lambda deployment: deployment.shape.moe_ep)
    numbers: dict[str, Numbers] = {USED_GPU_RATIO: used.sum(axis=1) / gpu_budget}
    if "prefill" in pool.roles:
        prefill = used[:, pool.roles.index("prefill")]
        numbers[PREFILL_GPU_SHARE] = prefill / used.sum(axis=1)
    modes: dict[str, Labels] = {}
    for position, role in enumerate(pool.roles):
        numbers[engine_size(role)] = sizes[:, position]
        modes[attention_mode(role)] = np.where(attention_dp[:, position] > 1, "dp", "tp")
        if (moe_tp[:, position] > 1).any() or (moe_ep[:, position] > 1).any():
            modes[ffn_mode(role)] = np.where(moe_ep[:, position] > 1, "ep", "tp")
    return numbers, modes


def _is_size(name: str) -> bool:
    return name not in (USED_GPU_RATIO, PREFILL_GPU_SHARE)


def _scale(name: str, values: Numbers | np.float64) -> Numbers:
    return np.asarray(np.log2(values) if _is_size(name) else values, dtype=np.float64)


def _plain(name: str, value: np.float64) -> float | int:
    return int(value) if _is_size(name) else float(value)


def _numeric_parameter(name: str, values: Numbers) -> Parameter | None:
    distinct = np.unique(values)
    if len(distinct) == 1:
        return None
    if _is_size(name):
        sizes = tuple(int(size) for size in distinct)
        return DiscreteParameter(name, sizes, log=True, default=_geometric_centre(sizes))
    low, high = float(distinct[0]), float(distinct[-1])
    wanted = _DEFAULT_USED_GPU_RATIO if name == USED_GPU_RATIO else _DEFAULT_PREFILL_GPU_SHARE
    return FloatParameter(name, low, high, default=min(max(wanted, low), high))


def _mode_parameter(name: str, labels: Labels) -> Parameter | None:
    # The default of each kind: attention over TP, experts over EP.
    preferred = ("tp", "dp") if name.endswith("attention_mode") else ("ep", "tp")
    present = tuple(mode for mode in preferred if (labels == mode).any())
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

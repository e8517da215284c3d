"""Analytical estimates of a branch's pool: what each deployment would do, before any replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from schemas.config import SmartSearchConfig
from schemas.messages import Sample
from schemas.search_space import Backend, Role
from spica_async.engine.estimates import Steps, StepTimes
from spica_async.plan.offered import OfferedLoad
from spica_async.plan.steady_state import (
    ClosedLoop,
    Numbers,
    OpenLoop,
    Performance,
    SteadyLoad,
    StepTable,
    Workers,
    aggregated,
    disaggregated,
)
from spica_async.plan.types import PlanningEngine, Progress
from spica_async.space.branch import BranchSpace, Selection
from spica_async.space.capacity import CapacityKey, CapacityTable, rejection
from spica_async.space.pool import ParallelConfig, ParallelPool, RoleDeployment
from spica_async.space.sample import static_sample
from spica_async.space.shapes import ParallelShape

Positions = NDArray[np.intp]

# For each backend: some 10 to 200 ms each; of more, the smallest are timed.
_MOST_WORKERS: Final = 24
# Of a larger pool, the deployments with round numbers of replicas stand for all.
_MOST_ROWS: Final = 50_000
_ROUND_REPLICAS: Final = frozenset(base << power for power in range(12) for base in (1, 3))
# No scheduler is let do more in one step.
_TOKENS_OF_A_STEP: Final = 32768
_DECODE_BATCHES: Final = tuple(1 << power for power in range(11))


@dataclass(frozen=True)
class PoolEstimates:
    """What some of a pool's configurations would do on one backend.

    Attributes:
        rows: positions in the pool, shape (n,).
        performance: of each.
    """

    rows: Positions
    performance: Performance


@dataclass
class Estimator:
    """Estimates the pools of one sweep; the steps of each worker are timed once.

    Attributes:
        config: the configuration as it is searched.
        engine: answers how long steps take.
        is_moe: whether the model has experts.
        longest_sequence: tokens that every worker must be able to hold.
        capacity: the engine's KV capacity of every shape that is searched.
        load: what the deployments serve.
        progress: takes a line on what is being done.
        problems: why workers could not be timed, in the order found.
    """

    config: SmartSearchConfig
    engine: PlanningEngine
    is_moe: bool
    longest_sequence: int
    capacity: CapacityTable
    load: OfferedLoad
    progress: Progress
    problems: list[str] = field(default_factory=list)
    _times: dict[tuple[Backend, ParallelShape], StepTimes | str] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether workers were to be timed and none could be."""
        return bool(self._times) and len(self.problems) == len(self._times)

    def estimate(
        self,
        branch: BranchSpace,
        backend: Backend,
        knobs: Mapping[str, JsonValue],
        kv_load_ratio: float | None,
    ) -> PoolEstimates | None:
        """Estimate what `backend` can run of the branch's pool; None if nothing can be estimated.

        Args:
            branch: whose pool.
            backend: one of its backends.
            knobs: the scheduler's limits and all else, the same for every configuration.
            kv_load_ratio: the part of its own capacity that each configuration is loaded to.
        """
        pool = branch.pool
        sample = static_sample(
            self.config.search_space,
            Selection(branch.mode, backend, pool[0], knobs),
            is_moe=self.is_moe,
        )
        positions = range(len(pool.roles))
        fleets = [self._fleet(branch, backend, sample, position) for position in positions]
        rows = _sampled(pool, pool.legal_indices(backend))
        for position, fleet in enumerate(fleets):
            rows = rows[fleet.usable[pool.indices[rows, position]]]
        if not len(rows):
            return None
        workers = [f.workers.take(pool.indices[rows, i]) for i, f in enumerate(fleets)]
        # Decode is last, and agg is alone: the role that decodes is the one that holds the load.
        load = self._steady_load(fleets[-1].kv_tokens[pool.indices[rows, -1]], kv_load_ratio)
        match workers:
            case [both]:
                performance = aggregated(both, load)
            case [prefill, decode]:
                performance = disaggregated(prefill, decode, load)
        return PoolEstimates(rows, performance)

    def _steady_load(self, kv_tokens: Numbers, kv_load_ratio: float | None) -> SteadyLoad:
        load = self.load
        if load.per_ms is not None:
            return OpenLoop(load.osl, load.per_ms, load.requests, load.regular)
        if load.concurrency is not None:
            return ClosedLoop(load.osl, np.full_like(kv_tokens, load.concurrency), load.waves)
        assert kv_load_ratio is not None  # noqa: S101  # the only load that is left
        capacity = np.floor(kv_tokens / (load.isl + load.osl // 2))
        concurrency = np.maximum(1, np.floor(kv_load_ratio * capacity))
        return ClosedLoop(load.osl, concurrency, load.waves)

    def _fleet(
        self, branch: BranchSpace, backend: Backend, sample: Sample, position: int
    ) -> _Fleet:
        """One role's deployments, in the pool's order of them."""
        role, options = branch.pool.roles[position], branch.pool.deployments[position]
        limits = ("max_num_batched_tokens", "max_num_seqs", "block_size")
        batched, sequences, block_size = (_number(sample, f"{role}_{name}") for name in limits)
        per_rank: dict[ParallelShape, int] = {}
        for shape in sorted({o.shape for o in options}, key=lambda shape: (shape.gpus, shape)):
            tokens = self.capacity.get(CapacityKey(backend, role, shape, batched))
            if isinstance(tokens, int) and rejection(tokens, self.longest_sequence) is None:
                per_rank[shape] = tokens // block_size * block_size
        times = self._step_times(branch, backend, role, list(per_rank))
        shapes = list(times)
        kind = [shapes.index(o.shape) if o.shape in times else 0 for o in options]
        ranks = [o.replicas * o.shape.attention_dp for o in options]
        tokens_of_rank = np.array([per_rank.get(o.shape, 0) for o in options], dtype=np.float64)
        longest = self.load.isl + self.load.osl
        prefilled = min(sequences, batched // (self.load.isl - self.load.cached))
        return _Fleet(
            workers=Workers(
                table=StepTable(
                    prefill_batches=np.array(self._steps.prefill_batches, dtype=np.float64),
                    prefill_ms=np.array([times[shape].prefill_ms for shape in shapes]),
                    decode_batches=np.array(_DECODE_BATCHES, dtype=np.float64),
                    decode_ms=np.array([times[shape].decode_ms for shape in shapes]),
                ),
                kind=np.array(kind, dtype=np.intp),
                ranks=np.array(ranks, dtype=np.float64),
                most_prefilled=np.full(len(options), max(1.0, prefilled)),
                most_decoded=np.clip(np.floor(tokens_of_rank / longest), 1, sequences),
            ),
            kv_tokens=tokens_of_rank * np.array(ranks),
            usable=np.array([option.shape in times for option in options]),
        )

    def _step_times(
        self, branch: BranchSpace, backend: Backend, role: Role, shapes: Sequence[ParallelShape]
    ) -> dict[ParallelShape, StepTimes]:
        """The steps of those workers that they are known of, the same whatever the role."""
        new = [shape for shape in shapes if (backend, shape) not in self._times]
        timed = sum(other == backend for other, _ in self._times)
        new = new[: max(0, _MOST_WORKERS - timed)]
        if new:
            self.progress(f"estimating the steps of {len(new)} kinds of {backend} workers")
            workers = []
            for shape in new:
                config = ParallelConfig(((role, RoleDeployment(shape, 1)),))
                selection = Selection(branch.mode, backend, config, {})
                space = self.config.search_space
                workers.append((static_sample(space, selection, is_moe=self.is_moe), role))
            found = self.engine.step_times(workers, self._steps)
            self._times |= {(backend, s): one for s, one in zip(new, found, strict=True)}
            self.problems += [one for one in found if isinstance(one, str)]
        known = {shape: self._times.get((backend, shape)) for shape in shapes}
        return {shape: one for shape, one in known.items() if isinstance(one, StepTimes)}

    @property
    def _steps(self) -> Steps:
        """Batches in powers of two, of prompts up to where a step's limit of tokens is passed."""
        uncached = self.load.isl - self.load.cached
        together = max(1, _TOKENS_OF_A_STEP // uncached)
        return Steps(
            isl=self.load.isl,
            cached=self.load.cached,
            context=self.load.isl + self.load.osl // 2,
            prefill_batches=tuple(1 << power for power in range(together.bit_length() + 1)),
            decode_batches=_DECODE_BATCHES,
        )


@dataclass(frozen=True)
class _Fleet:
    """One role's deployments.

    Attributes:
        workers: what they can do, shape (deployments,).
        kv_tokens: that all ranks hold together, shape (deployments,).
        usable: whether there is an estimate at all, shape (deployments,).
    """

    workers: Workers
    kv_tokens: Numbers
    usable: NDArray[np.bool_]


def _sampled(pool: ParallelPool, rows: Positions) -> Positions:
    if len(rows) <= _MOST_ROWS:
        return rows
    for position, options in enumerate(pool.deployments):
        is_round = np.array([option.replicas in _ROUND_REPLICAS for option in options])
        rows = rows[is_round[pool.indices[rows, position]]]
    return rows[:: max(1, -(-len(rows) // _MOST_ROWS))]


def _number(sample: Sample, name: str) -> int:
    value = sample[name]
    assert isinstance(value, int)  # noqa: S101  # a limit of the scheduler
    return value

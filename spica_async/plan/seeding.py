"""What each branch tries first beside the middle of its space."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from schemas.goal import OptimizationGoal
from schemas.search_space import Backend
from spica_async.optimizer.assignments import centre
from spica_async.plan.estimates import Estimator, PoolEstimates
from spica_async.plan.warm_start import SEEDS, Indices, Numbers, best_of_kinds, spread_front
from spica_async.space.branch import BranchSpace, Selection
from spica_async.space.pool import ParallelPool

# Parts of a range of KV loads: what a deployment gives its users changes with each doubling.
_LOAD_STEPS: Final = (1 / 64, 1 / 16, 1 / 4, 3 / 4)


@dataclass(frozen=True)
class _Group:
    """Estimates that share all but the parallel configuration."""

    backend: Backend
    middle: Selection
    kv_load_ratio: float | None
    estimates: PoolEstimates


def find_seeds(estimator: Estimator, branch: BranchSpace) -> tuple[Selection, ...]:
    """Good and different selections of a branch, best first; none where nothing is estimated."""
    groups = list(_groups(estimator, branch))
    if not groups:
        return ()
    goal = estimator.config.goal
    # One more than wanted, since the middle of the space, tried anyway, may be among them.
    wanted = SEEDS + 1
    if goal.is_pareto:
        values = np.concatenate([_values(goal, branch.pool, group) for group in groups])
        picks = spread_front(values, wanted)
    else:
        scores = np.concatenate([_values(goal, branch.pool, group)[:, 0] for group in groups])
        gpus = np.concatenate([branch.pool.used_gpus[g.estimates.rows] for g in groups])
        picks = best_of_kinds(scores, gpus.astype(np.float64), _kinds(branch.pool, groups), wanted)
    starts = np.cumsum([0, *(len(group.estimates.rows) for group in groups)])
    seeds: list[Selection] = []
    tried, _ = branch.select(centre(branch.parameters))
    for pick in picks:
        at = int(np.searchsorted(starts, pick, side="right")) - 1
        group = groups[at]
        seed = Selection(
            branch.mode,
            group.backend,
            branch.pool[int(group.estimates.rows[pick - starts[at]])],
            group.middle.knobs,
            group.kv_load_ratio,
        )
        # As the study would propose it: a pinned twin of it may stand in its place.
        seed, _ = branch.select(branch.assignment_of(seed))
        if seed != tried and seed not in seeds:
            seeds.append(seed)
    return tuple(seeds[:SEEDS])


def _groups(estimator: Estimator, branch: BranchSpace) -> Iterator[_Group]:
    for backend in branch.pool.backends:
        if backend not in branch.backend.entries:
            continue
        middle, _ = branch.select(centre(branch.parameters) | {branch.backend.name: backend})
        for ratio in _kv_load_ratios(branch):
            estimates = estimator.estimate(branch, backend, middle.knobs, ratio)
            if estimates is not None:
                yield _Group(backend, middle, ratio, estimates)


def _kv_load_ratios(branch: BranchSpace) -> Iterable[float | None]:
    if not isinstance(branch.kv_load, tuple):
        return (branch.kv_load,)
    low, high = branch.kv_load
    return [low + step * (high - low) for step in _LOAD_STEPS]


def _values(goal: OptimizationGoal, pool: ParallelPool, group: _Group) -> Numbers:
    """Shape (n, objectives), more is better."""
    gpus = pool.used_gpus[group.estimates.rows].astype(np.float64)
    return np.stack(
        [
            group.estimates.performance.objective(target, gpus, goal.sla)
            for target in goal.objectives
        ],
        axis=1,
    )


def _kinds(pool: ParallelPool, groups: Iterable[_Group]) -> Indices:
    """A number for each combination of a backend with GPUs per worker of every role."""
    sizes = pool.role_values(lambda deployment: deployment.shape.gpus)
    found = []
    for group in groups:
        rows = group.estimates.rows
        backend = np.full((len(rows), 1), pool.backends.index(group.backend))
        found.append(np.concatenate([backend, sizes[rows]], axis=1))
    _, kinds = np.unique(np.concatenate(found), axis=0, return_inverse=True)
    return kinds.reshape(-1)

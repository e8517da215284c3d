"""The branches of a sweep: which shapes, backends and modes are viable, and why others are not."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from schemas.config import SmartSearchConfig
from schemas.messages import Sample
from schemas.search_space import (
    ROLES,
    Backend,
    DeploymentMode,
    PinnedPair,
    PinnedShape,
    Role,
)
from spica_async.engine.facts import NoPerfDatabaseError
from spica_async.engine.refusals import ShapeRejectedError
from spica_async.errors import InputError
from spica_async.plan.types import Dropped, PlanningEngine, Progress, dropped_lines
from spica_async.space.branch import BranchSpace, Selection
from spica_async.space.capacity import CapacityKey, rejection
from spica_async.space.knobs import Knob, active_knobs
from spica_async.space.pool import (
    MenuPool,
    ParallelConfig,
    RoleDeployment,
    menu_pool,
)
from spica_async.space.product import PoolTooLargeError, ProductPool, enumerate_pool
from spica_async.space.sample import static_sample
from spica_async.space.shapes import (
    ParallelShape,
    backend_problem,
    enumerate_shapes,
    width_problem,
)

_MAX_PROBES = 3


@dataclass
class BranchBuilder:
    """Builds the branches of one sweep and keeps what it learns on the way.

    Attributes:
        config: the configuration, its scaling policies already filtered.
        engine: answers about capacity and capability.
        is_moe: whether the model has experts.
        longest_sequence: tokens that every worker must be able to hold.
        progress: takes a line on what is being done.
        capacity: what the engine said of each shape.
        dropped: what was left out and why, in the order found.
        warnings: knobs that were left out of a study.
        backend_versions: of the backends that have performance data.
    """

    config: SmartSearchConfig
    engine: PlanningEngine
    is_moe: bool
    longest_sequence: int
    progress: Progress
    capacity: dict[CapacityKey, int | str] = field(default_factory=dict)
    dropped: list[Dropped] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    backend_versions: dict[Backend, str] = field(default_factory=dict)

    def build(self) -> tuple[BranchSpace, ...]:
        """One branch per viable mode, in the configuration's order.

        Raises:
            InputError: if a pinned configuration is legal for no backend, a knob was set that no
                replay hears, or no mode is viable.
        """
        backends = [b for b in self.config.search_space.backend if self._has_performance_data(b)]
        branches = []
        for mode in self.config.search_space.deployment_mode:
            branch = self._branch(mode, backends)
            if branch is not None:
                branches.append(branch)
        if not branches:
            raise InputError(self._nothing_viable())
        return tuple(branches)

    def _has_performance_data(self, backend: Backend) -> bool:
        try:
            self.backend_versions[backend] = self.engine.backend_version(
                self.config.search_space.hardware_sku, backend
            )
        except NoPerfDatabaseError as error:
            self.dropped.append(Dropped(f"backend {backend}", str(error)))
            return False
        return True

    def _branch(self, mode: DeploymentMode, backends: Iterable[Backend]) -> BranchSpace | None:
        pinned = self.config.search_space.parallel_configs
        menu = [parallel_config(mode, entry) for entry in pinned]
        viable: dict[Backend, dict[Role, set[ParallelShape]]] = {}
        for backend in backends:
            shapes = self._feasible_shapes(mode, backend, menu)
            if self._can_replay(mode, backend, shapes, menu):
                viable[backend] = shapes
        pool = self._menu(mode, menu, viable) if menu else self._enumerate(mode, viable)
        if pool is None:
            return None
        legal = [b for b in viable if b in pool.backends and pool.count(b)]
        target = self.config.goal.target.planner_optimization_target
        unread = self.engine.unread_planner_knobs(target)
        ignored = {b: {**self.engine.ignored_knobs(b), **unread} for b in legal}
        knobs, unheard = active_knobs(self.config.search_space, mode, ignored)
        self._warn_or_refuse(unheard, tolerated=unread)
        return BranchSpace(
            mode=mode,
            backend=Knob("backend", tuple(legal)),
            pool=pool,
            knobs=tuple(knobs),
            ignored={backend: frozenset(by_knob) for backend, by_knob in ignored.items()},
            kv_load=self.config.kv_load,
            gpu_budget=self.config.search_space.gpu_budget,
        )

    def _warn_or_refuse(self, unheard: Mapping[str, str], tolerated: Container[str]) -> None:
        """A knob that no replay hears is left out; one that was set is an error.

        What only this goal's planner leaves unread is tolerated: it may stand in the file for
        another goal.
        """
        for name, reason in unheard.items():
            if self.config.search_space.is_set(name) and name not in tolerated:
                raise InputError(f"search_space.{name}: {reason}; remove it")
            warning = f"{name} is not searched: {reason}"
            if warning not in self.warnings:
                self.warnings.append(warning)

    def _feasible_shapes(
        self, mode: DeploymentMode, backend: Backend, menu: list[ParallelConfig]
    ) -> dict[Role, set[ParallelShape]]:
        space = self.config.search_space
        feasible: dict[Role, set[ParallelShape]] = {}
        for role in ROLES[mode]:
            wanted: Iterable[ParallelShape]
            if menu:
                wanted = sorted({config[role].shape for config in menu})
            else:
                wanted = enumerate_shapes(is_moe=self.is_moe, gpu_budget=space.gpu_budget)
            feasible[role] = set()
            for shape in wanted:
                self.progress(f"KV capacity: {mode} {backend} {role} {shape}")
                problem = (
                    width_problem(shape, is_moe=self.is_moe)
                    or backend_problem(shape, backend, space.moe_backend)
                    or self._kv_problem(backend, role, shape)
                )
                if problem is None:
                    feasible[role].add(shape)
                else:
                    self.dropped.append(Dropped(f"{mode} {backend} {role} {shape}", problem))
        return feasible

    def problem_of(self, selection: Selection) -> str | None:
        """Why one deployment cannot be replayed, or None; it need not be of any branch."""
        moe_backend = self.config.search_space.moe_backend
        for role, deployment in selection.config.roles:
            shape = deployment.shape
            problem = width_problem(shape, is_moe=self.is_moe) or backend_problem(
                shape, selection.backend, moe_backend
            )
            if problem is None:
                batched = selection.knobs[f"{role}_max_num_batched_tokens"]
                assert isinstance(batched, int)  # noqa: S101  # an engine knob
                key = CapacityKey(selection.backend, role, shape, batched)
                self.progress(f"KV capacity: {selection.mode} {selection.backend} {role} {shape}")
                self.capacity[key] = self._capacity(key)
                problem = rejection(self.capacity[key], self.longest_sequence)
            if problem is not None:
                return f"{role}: {problem}"
        single = tuple((role, RoleDeployment(one.shape, 1)) for role, one in selection.config.roles)
        self.progress(f"trying a replay: {selection.mode} {selection.backend}, the baseline")
        return self.engine.probe_replay(
            self._static_sample(replace(selection, config=ParallelConfig(single)))
        )

    def _kv_problem(self, backend: Backend, role: Role, shape: ParallelShape) -> str | None:
        """Why no choice of the batch limit leaves the shape enough KV cache, or None."""
        problems = []
        for batched in getattr(self.config.search_space, f"{role}_max_num_batched_tokens"):
            key = CapacityKey(backend, role, shape, batched)
            self.capacity[key] = self._capacity(key)
            problems.append(rejection(self.capacity[key], self.longest_sequence))
        return problems[0] if all(problem is not None for problem in problems) else None

    def _capacity(self, key: CapacityKey) -> int | str:
        mode: DeploymentMode = "agg" if key.role == "agg" else "disagg"
        config = ParallelConfig(((key.role, RoleDeployment(key.shape, 1)),))
        limit = {f"{key.role}_max_num_batched_tokens": key.max_num_batched_tokens}
        sample = self._static_sample(Selection(mode, key.backend, config, limit))
        try:
            return self.engine.kv_tokens_per_rank(sample, key.role)
        except ShapeRejectedError as error:
            return str(error)

    def _can_replay(
        self,
        mode: DeploymentMode,
        backend: Backend,
        shapes: Mapping[Role, set[ParallelShape]],
        menu: list[ParallelConfig],
    ) -> bool:
        """Ask the engine for one request of a few shapes; one that runs speaks for the backend."""
        reasons = []
        for config in _probes(mode, shapes, menu):
            self.progress(f"trying a replay: {mode} {backend} {config}")
            sample = self._static_sample(Selection(mode, backend, config, {}))
            reason = self.engine.probe_replay(sample)
            if reason is None:
                return True
            reasons.append(reason)
        if reasons:
            self.dropped.append(Dropped(f"{mode} {backend}", f"cannot be replayed: {reasons[0]}"))
        return False

    def _static_sample(self, selection: Selection) -> Sample:
        return static_sample(self.config.search_space, selection, is_moe=self.is_moe)

    def _enumerate(
        self, mode: DeploymentMode, viable: Mapping[Backend, Mapping[Role, set[ParallelShape]]]
    ) -> ProductPool | None:
        low, high = self._gpu_limits
        try:
            pool = enumerate_pool(ROLES[mode], viable, gpu_budget=high, min_gpu_budget=low)
        except PoolTooLargeError as error:
            raise InputError(
                f"search_space.gpu_budget: {high} GPUs make too many {mode} configurations "
                f"({error}); list some in parallel_configs"
            ) from None
        for backend in pool.backends:
            if not pool.count(backend):
                reason = f"no replicas of its shapes use {low} to {high} GPUs"
                self.dropped.append(Dropped(f"{mode} {backend}", reason))
        if not len(pool):
            self.dropped.append(Dropped(mode, "no backend can run it"))
            return None
        return pool

    def _menu(
        self,
        mode: DeploymentMode,
        menu: list[ParallelConfig],
        viable: Mapping[Backend, Mapping[Role, set[ParallelShape]]],
    ) -> MenuPool:
        low, high = self._gpu_limits
        legal: dict[ParallelConfig, set[Backend]] = {}
        for index, config in enumerate(menu):
            where = f"search_space.parallel_configs[{index}]"
            if not low <= config.used_gpus <= high:
                raise InputError(
                    f"{where}: uses {config.used_gpus} GPUs, allowed are {low} to {high}"
                )
            legal[config] = {
                backend
                for backend, by_role in viable.items()
                if all(config[role].shape in by_role[role] for role in ROLES[mode])
            }
            if not legal[config]:
                raise InputError(f"{where}: no backend can run {config}:\n{self._reasons()}")
        return menu_pool(ROLES[mode], legal)

    @property
    def _gpu_limits(self) -> tuple[int, int]:
        space = self.config.search_space
        return space.min_gpu_budget or 1, space.gpu_budget

    def _reasons(self) -> str:
        return "\n".join(f"  {line}" for line in dropped_lines(self.dropped))

    def _nothing_viable(self) -> str:
        space = self.config.search_space
        reasons = self._reasons()
        if not self.backend_versions:
            return f"search_space.backend: none can be replayed on {space.hardware_sku}:\n{reasons}"
        return (
            f"search_space: no deployment of {space.model_name} on {space.hardware_sku} is viable "
            f"within gpu_budget {space.gpu_budget}:\n{reasons}"
        )


def parallel_config(mode: DeploymentMode, entry: PinnedShape | PinnedPair) -> ParallelConfig:
    """The deployment that a person has pinned, in the form that suits the mode."""

    def deployment(role: Role) -> RoleDeployment:
        pinned = entry if isinstance(entry, PinnedShape) else getattr(entry, role)
        shape = ParallelShape(pinned.tp, pinned.attention_dp, pinned.moe_tp, pinned.moe_ep)
        return RoleDeployment(shape, pinned.replicas)

    return ParallelConfig(tuple((role, deployment(role)) for role in ROLES[mode]))


def _probes(
    mode: DeploymentMode, shapes: Mapping[Role, set[ParallelShape]], menu: list[ParallelConfig]
) -> Iterator[ParallelConfig]:
    """A few configurations with one replica a role: small ones first, or the menu's own."""
    roles = ROLES[mode]
    if menu:
        found = [c for c in menu if all(c[role].shape in shapes[role] for role in roles)]
        choices = [[config[role].shape for role in roles] for config in found]
    else:
        ascending = [sorted(shapes[role], key=lambda shape: (shape.gpus, shape)) for role in roles]
        choices = [list(row) for row in zip(*ascending, strict=False)]
    for row in choices[:_MAX_PROBES]:
        single = (RoleDeployment(shape, 1) for shape in row)
        yield ParallelConfig(tuple(zip(roles, single, strict=True)))

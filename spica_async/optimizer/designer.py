"""Vizier's default algorithm, GP-UCB-PE, as a function of the history, in two set-ups.

Imported in the optimizer process only: it loads JAX and sets it up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

import jax
from vizier import algorithms as vza
from vizier._src.algorithms.designers.gp_ucb_pe import UCBPEConfig, VizierGPUCBPEBandit
from vizier._src.algorithms.optimizers.eagle_strategy import VectorizedEagleStrategyFactory
from vizier._src.algorithms.optimizers.vectorized_base import (
    VectorizedOptimizer,
    VectorizedOptimizerFactory,
)
from vizier.pyvizier import converters

from spica_async.optimizer.fit import LbfgsFit
from spica_async.optimizer.gaussian_process import MaskedProcess
from spica_async.optimizer.history import most_informative
from spica_async.optimizer.jax_setup import set_up_jax
from spica_async.optimizer.padding import Tier, compile_label_programs
from spica_async.optimizer.rehearsal import Rehearsal, made_up_request, rehearsals_after
from spica_async.optimizer.seeding import derive_seed
from spica_async.optimizer.tiers import fitted_count
from spica_async.optimizer.types import Study
from spica_async.optimizer.vizier_study import to_active, to_assignment, to_completed, to_problem
from spica_async.optimizer.wire import AskRequest
from spica_async.space.parameters import Assignment

_clock = set_up_jax()

# As many as Vizier's own, beside one start that is always the same. With one, some fits end far
# from the best.
_FIT_RESTARTS = 4
# Explores more widely than Vizier by itself (0.5), which on spaces with many hills stays on one.
_CONFIG = UCBPEConfig(explore_region_ucb_coefficient=1.5)

_acquisition_factory = VectorizedOptimizerFactory(
    strategy_factory=VectorizedEagleStrategyFactory(
        eagle_config=VizierGPUCBPEBandit.default_eagle_config
    ),
    max_evaluations=5000,
    suggestion_batch_size=100,
)


class VizierDefaultDesigner:
    """Suggests with Vizier's GP-UCB-PE bandit just as Vizier sets it up; a `Designer`.

    Every ask builds a new bandit, whose randomness comes from the study and the ask's number, and
    gives it the history. So any process suggests the same for the same request.

    Args:
        study: What to search.
    """

    clock = _clock

    def __init__(self, study: Study) -> None:
        self._study = study
        self._problem = to_problem(study)

    def suggest(self, request: AskRequest) -> list[Assignment]:
        """Returns `request.count` assignments."""
        return self._ask(VizierGPUCBPEBandit(self._problem, rng=self._key(request)), request)

    def prepare(self, request: AskRequest, interrupted: Callable[[], bool]) -> None:
        """Does nothing: the stock bandit compiles its programs anew for every suggestion."""

    def _key(self, request: AskRequest) -> jax.Array:
        return jax.random.PRNGKey(derive_seed(self._study, "ask", request.first))

    def _ask(self, bandit: VizierGPUCBPEBandit, request: AskRequest) -> list[Assignment]:
        # Only then it exploits what it knows with its first suggestion. That one of the pending
        # suggestions was made later than one of the observed ones says nothing about it.
        told_before = request.first if request.has_news else 0
        bandit.update(
            vza.CompletedTrials([to_completed(trial, told_before) for trial in request.history]),
            vza.ActiveTrials([to_active(suggestion) for suggestion in request.pending]),
        )
        return [
            to_assignment(self._study, suggestion) for suggestion in bandit.suggest(request.count)
        ]


class FastDesigner(VizierDefaultDesigner):
    """Suggests with the same bandit, set up to compile rarely and to fit and search quickly.

    Of a long history it hears the most informative trials. What stays from ask to ask is compiled
    code alone.
    """

    def __init__(self, study: Study) -> None:
        super().__init__(study)
        # Compiled programs are found by the identity of this object's parts: one for all asks.
        self._acquisition: VectorizedOptimizer | None = None
        self._rehearsed: set[Rehearsal] = set()

    def suggest(self, request: AskRequest) -> list[Assignment]:
        """Returns `request.count` assignments."""
        others = len(request.pending) + request.count
        fitted = fitted_count(len(request.history), others)
        history = most_informative(request.history, self._study.objectives, fitted)
        bandit = self._bandit(
            Tier.for_trials(fitted + others), LbfgsFit(), _CONFIG, self._key(request)
        )
        return self._ask(bandit, replace(request, history=history))

    def prepare(self, request: AskRequest, interrupted: Callable[[], bool]) -> None:
        """Compiles what the asks after `request` will need.

        Args:
            request: The last ask.
            interrupted: Whether another ask has come in; then this returns between two programs.
                What it has compiled by then stays.
        """

        def stop_if_interrupted() -> None:
            if interrupted():
                raise _InterruptedError

        with contextlib.suppress(_InterruptedError):
            for rehearsal in rehearsals_after(request):
                if rehearsal not in self._rehearsed:
                    stop_if_interrupted()
                    self._rehearse(rehearsal, stop_if_interrupted)
                    self._rehearsed.add(rehearsal)

    def _rehearse(self, rehearsal: Rehearsal, visit: Callable[[], None]) -> None:
        if rehearsal.explores is None:
            compile_label_programs(
                rehearsal.observed, len(self._study.objectives), rows=rehearsal.rows
            )
            return
        # The bandit throws a dice between its two acquisition functions; here it is loaded.
        explores = float(rehearsal.explores)
        config = UCBPEConfig(
            pe_overwrite_probability=explores, pe_overwrite_probability_in_high_noise=explores
        )
        tier = Tier(rehearsal.rows, visit)
        bandit = self._bandit(tier, LbfgsFit(iterations=1), config, jax.random.PRNGKey(0))
        self._ask(bandit, made_up_request(self._study))

    def _bandit(
        self, tier: Tier, fit: LbfgsFit, config: UCBPEConfig, key: jax.Array
    ) -> VizierGPUCBPEBandit:
        return VizierGPUCBPEBandit(
            self._problem,
            acquisition_optimizer_factory=self._acquisition_optimizer,
            gp_model_class=MaskedProcess,
            ard_optimizer=fit,
            ard_random_restarts=_FIT_RESTARTS,
            padding_schedule=tier,
            config=config,
            rng=key,
        )

    def _acquisition_optimizer(
        self, converter: converters.TrialToModelInputConverter
    ) -> VectorizedOptimizer:
        if self._acquisition is None:
            self._acquisition = _acquisition_factory(converter)
        return self._acquisition


class _InterruptedError(Exception):
    """An ask has come in while programs were compiled ahead of it."""

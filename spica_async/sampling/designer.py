"""Vizier's default algorithm, GP-UCB-PE, as a function of the history.

Imported in the optimizer process only: it loads JAX, switches it to 64 bits and points it to a
compilation cache on disk.
"""

from __future__ import annotations

import jax
import numpy as np
import platformdirs
from vizier import algorithms as vza
from vizier._src.algorithms.designers.gp_ucb_pe import VizierGPUCBPEBandit
from vizier._src.algorithms.optimizers.eagle_strategy import VectorizedEagleStrategyFactory
from vizier._src.algorithms.optimizers.vectorized_base import (
    VectorizedOptimizer,
    VectorizedOptimizerFactory,
)
from vizier._src.jax import types
from vizier.jax import optimizers
from vizier.pyvizier import converters

from spica_async.sampling.assignments import centre
from spica_async.sampling.history import most_telling
from spica_async.sampling.masked_fit import MaskedFit
from spica_async.sampling.seeding import derive_seed
from spica_async.sampling.types import Study
from spica_async.sampling.vizier_study import to_active, to_assignment, to_completed, to_problem
from spica_async.sampling.wire import AskRequest
from spica_async.space.parameters import Assignment

# Vizier's kernels lose their footing in 32 bits.
jax.config.update("jax_enable_x64", True)  # noqa: FBT003 - The signature is JAX's.
jax.config.update(
    "jax_compilation_cache_dir", str(platformdirs.user_cache_path("spica-async") / "jax")
)
# Small programs are many here, so each one is worth keeping.
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

SEED_TRIALS = 8
"""Suggestions made without a model: the centre, then quasi-random ones."""

SMALLEST_TIER = 32

_acquisition_factory = VectorizedOptimizerFactory(
    strategy_factory=VectorizedEagleStrategyFactory(
        eagle_config=VizierGPUCBPEBandit.default_eagle_config
    ),
    max_evaluations=5000,
    suggestion_batch_size=100,
)


class Tier:
    """Pads every array of trials to one number of rows, as Vizier's padding schedule.

    One tier serves a whole ask, so all arrays of the ask have one shape, and asks of the same tier
    share their compiled programs.

    Args:
        trials: Trials, told, pending and to be suggested, for which an ask needs room.
    """

    def __init__(self, trials: int) -> None:
        self.rows = SMALLEST_TIER
        while self.rows < trials:
            self.rows *= 2

    def pad_features(self, features: types.Array) -> types.PaddedArray:
        """Returns features, shape (trials, dimensions), padded to (rows, dimensions)."""
        # Vizier's own fill values: an impossible category, or NaN.
        return self._pad(features, -1 if np.issubdtype(features.dtype, np.integer) else np.nan)

    def pad_labels(self, labels: types.Array) -> types.PaddedArray:
        """Returns labels, shape (trials, objectives), padded to (rows, objectives)."""
        return self._pad(labels, np.nan)

    def _pad(self, array: types.Array, fill_value: float) -> types.PaddedArray:
        # Put together by NumPy: the factory of the class pads with JAX, which compiles programs
        # of its own for every number of trials; that took more time than fit and search together.
        shape = (self.rows, *array.shape[1:])
        padded = np.full(shape, fill_value, dtype=array.dtype)
        padded[: len(array)] = array
        mask = np.zeros(shape, dtype=bool)
        mask[: len(array)] = True
        return types.PaddedArray(
            padded, fill_value=fill_value, _original_shape=array.shape, _mask=mask
        )


class GaussianProcessDesigner:
    """Suggests with Vizier's GP-UCB-PE bandit; a `Designer` for the optimizer process.

    Every ask builds a new bandit, whose randomness comes from the study and the ask's number, and
    tells it the history, or the most telling trials of a long one. What stays from ask to ask is
    compiled code alone, so any process suggests the same for the same request.

    Args:
        study: What to search.
    """

    def __init__(self, study: Study) -> None:
        self._study = study
        self._problem = to_problem(study)
        # Compiled programs are found by the identity of this object's parts: one for all asks.
        self._acquisition: VectorizedOptimizer | None = None
        self._rows = SMALLEST_TIER

    def suggest(self, request: AskRequest) -> list[Assignment]:
        """Returns `request.count` assignments: seeds at first, then the bandit's."""
        if request.first < SEED_TRIALS:
            return self._seeds(request.first, request.count)
        history = most_telling(request.history, self._study.objectives)
        bandit = self._bandit(
            trials=len(history) + len(request.pending) + request.count,
            seed=derive_seed(self._study, "ask", request.first),
        )
        bandit.update(
            vza.CompletedTrials([to_completed(trial) for trial in history]),
            vza.ActiveTrials([to_active(suggestion) for suggestion in request.pending]),
        )
        return self._assignments(bandit, request.count)

    def _seeds(self, first: int, count: int) -> list[Assignment]:
        """Returns seeds `first` and on: one even sequence, however many are asked for at once."""
        bandit = self._bandit(trials=first + count, seed=derive_seed(self._study, "seeds"))
        seeds = self._assignments(bandit, first + count)
        # The bandit's centre knows no defaults.
        seeds[0] = centre(self._study.parameters)
        return seeds[first:]

    def _assignments(self, bandit: VizierGPUCBPEBandit, count: int) -> list[Assignment]:
        return [to_assignment(self._study, suggestion) for suggestion in bandit.suggest(count)]

    def _bandit(self, *, trials: int, seed: int) -> VizierGPUCBPEBandit:
        tier = Tier(trials)
        if tier.rows != self._rows:
            # Asks only grow: the programs of the last tier, a quarter of a gigabyte, are done with.
            jax.clear_caches()
            self._rows = tier.rows
        return VizierGPUCBPEBandit(
            self._problem,
            acquisition_optimizer_factory=self._acquisition_optimizer,
            padding_schedule=tier,
            num_seed_trials=SEED_TRIALS,
            ard_random_restarts=1,
            ard_optimizer=MaskedFit(
                optimizers.JaxoptScipyLbfgsB(
                    optimizers.LbfgsBOptions(num_line_search_steps=20, tol=1e-5, maxiter=100)
                )
            ),
            clear_jax_cache=False,
            rng=jax.random.PRNGKey(seed),
        )

    def _acquisition_optimizer(
        self, converter: converters.TrialToModelInputConverter
    ) -> VectorizedOptimizer:
        if self._acquisition is None:
            self._acquisition = _acquisition_factory(converter)
        return self._acquisition

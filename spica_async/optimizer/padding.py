"""Arrays of trials padded to tiers, so that asks share their compiled programs.

Imported in the optimizer process only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import jax
import numpy as np
from jax import numpy as jnp
from vizier._src.jax import types

from spica_async.optimizer.tiers import rows_for

_NO_CATEGORY = -1


class Tier:
    """Pads every array of trials to one number of rows, as Vizier's padding schedule.

    JAX compiles a program for each combination of shapes, however small the program. So arrays
    are put together by NumPy, and what Vizier takes for unpadded features has all rows, too.

    Args:
        rows: The number of rows: room for all trials, observed, pending and to be suggested.
        visit: Called with each array. Whatever it raises ends the ask.
    """

    def __init__(self, rows: int, visit: Callable[[], None] = lambda: None) -> None:
        self.rows = rows
        self._visit = visit
        self._merged = 0

    @classmethod
    def for_trials(cls, trials: int) -> Self:
        """Returns the smallest tier with room for `trials`."""
        return cls(rows_for(trials))

    def pad_features(self, features: types.Array) -> types.PaddedArray:
        """Returns features, shape (trials, width), padded to (rows, width).

        More trials than rows are two padded arrays, one after the other, of which the real trials
        stay.
        """
        self._visit()
        # Vizier's own fill values: an impossible category, or no number.
        is_integer = np.issubdtype(features.dtype, np.integer)
        fill_value = _NO_CATEGORY if is_integer else np.nan
        if len(features) > self.rows:
            features = np.asarray(features)
            if features.shape[1]:
                missing = features[:, 0] == fill_value if is_integer else np.isnan(features[:, 0])
                features = features[~missing]
                self._merged = len(features)
            else:
                # Nothing says which rows are real. What the other array says is all that counts.
                features = features[: self.rows]
        elif not features.shape[1]:
            features = np.zeros((self.rows, 0), dtype=features.dtype)
        return self._pad(WholeFeatures, features, fill_value)

    def pad_labels(self, labels: types.Array) -> types.PaddedArray:
        """Returns labels, shape (trials, objectives), padded to (rows, objectives).

        As many trials as rows, or more, are observed labels and then a zero for each row; of
        them as many stay as features did.
        """
        self._visit()
        if len(labels) >= self.rows:
            labels = np.asarray(labels)[: self._merged]
        return self._pad(ExactLabels, labels, np.nan)

    def _pad(
        self, kind: type[types.PaddedArray], array: types.Array, fill_value: float
    ) -> types.PaddedArray:
        shape = (self.rows, *array.shape[1:])
        padded = np.full(shape, fill_value, dtype=array.dtype)
        padded[: len(array)] = array
        mask = np.zeros(shape, dtype=bool)
        mask[: len(array)] = True
        return kind(padded, fill_value=fill_value, _original_shape=array.shape, _mask=mask)


class WholeFeatures(types.PaddedArray):  # type: ignore[misc]  # Equinox leaves its base untyped.
    """Padded features that are handed out with their padding."""

    def unpad(self) -> jax.Array:
        """Returns all rows: an array of one shape whatever the number of trials."""
        return self.padded_array


class ExactLabels(types.PaddedArray):  # type: ignore[misc]  # As above.
    """Padded labels that are cut to their trials without a program."""

    def unpad(self) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        """Returns the labels of the real trials."""
        return np.asarray(self.padded_array)[: int(self._original_shape[0])]


def compile_label_programs(observed: int, objectives: int, rows: int) -> None:
    """Compiles what the bandit runs on the labels of `observed` trials outside of our reach.

    These few are the only programs whose shapes follow the number of observed trials: Vizier pads
    the labels itself once it has warped them, cuts them again, and joins them to those of the
    pending.
    """
    labels = types.PaddedArray.from_array(
        np.zeros((observed, objectives)), (rows, objectives), fill_value=jnp.asarray(np.nan)
    )
    jnp.concatenate([labels.unpad(), jnp.zeros((rows, objectives))], axis=0)

"""A fit of the Gaussian process that leaves padded trials out for several objectives too.

Imported in the optimizer process only.

The stock loss of a process over several objectives takes padded rows for observations. They hold
NaN, so the loss is NaN, and the fit ends where it began without a word. Vizier models objectives
as independent processes that share one kernel, so their log-probability is the sum of those of
single-objective processes, and these can leave rows out.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
from jax import numpy as jnp
from vizier._src.jax import stochastic_process_model as sp
from vizier._src.jax import types
from vizier._src.jax.models.tuned_gp_models import VizierGaussianProcess
from vizier.jax import optimizers


def masked_loss(data: types.ModelData, params: types.ParameterDict) -> tuple[jax.Array, Any]:
    """Returns the negative log-likelihood plus regularizers, over the real rows of `data`.

    Args:
        data: Features and labels of one or more objectives; padded rows may hold anything.
        params: Hyper-parameters of the process, shared by all objectives.

    Returns:
        The scalar loss, and the regularizers as Vizier's own loss returns them.
    """
    first_objective = types.ModelData(
        data.features, types.PaddedArray.as_padded(data.labels.padded_array[:, :1])
    )
    coroutine = VizierGaussianProcess.build_model(first_objective).coroutine
    process, aux = sp.StochasticProcessWithCoroutine(coroutine, params).call_with_aux(data.features)
    log_likelihoods = process.log_prob(
        data.labels.padded_array.T, is_missing=data.labels.is_missing[0]
    )
    return sum(aux["losses"].values()) - jnp.sum(log_likelihoods), aux


class MaskedFit:
    """An optimizer of hyper-parameters for Vizier's designer, which minimises `masked_loss`.

    Args:
        optimizer: What does the minimising.
    """

    def __init__(self, optimizer: optimizers.Optimizer[types.ParameterDict]) -> None:
        self._optimizer = optimizer

    def __call__(
        self,
        init_params: types.ParameterDict,
        loss_fn: Any,
        rng: jax.Array,
        *,
        constraints: sp.Constraint | None = None,
        best_n: int | None = None,
    ) -> tuple[types.ParameterDict, dict[str, Any]]:
        """Returns the `best_n` sets of hyper-parameters, and the losses of all starts.

        Args:
            init_params: Where to start, stacked along the first axis.
            loss_fn: The stock loss, a bound method of the model that holds the data.
            rng: Random key for the optimizer.
            constraints: Bounds of the hyper-parameters.
            best_n: How many sets to return.

        Raises:
            FloatingPointError: If no start led to a finite loss: there is no fit then.
        """
        # A partial of Equinox keeps the data out of what the compiled function is looked up by.
        params, metrics = self._optimizer(
            init_params=init_params,
            loss_fn=eqx.Partial(masked_loss, loss_fn.__self__.data),  # type: ignore[no-untyped-call]  # Equinox leaves it untyped.
            rng=rng,
            constraints=constraints,
            best_n=best_n,
        )
        if not jnp.any(jnp.isfinite(metrics["loss"])):
            raise FloatingPointError("the fit of the Gaussian process found no finite loss")
        return params, metrics

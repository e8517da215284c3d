"""What Dynamo's own tools deploy where nobody has chosen."""

from __future__ import annotations

from pydantic import ValidationError

from schemas.search_space import Backend, PinnedShape
from spica_async.engine import runtime
from spica_async.engine.refusals import one_line


class NoDefaultShapeError(ValueError):
    """Nothing is deployed by default that could be replayed."""


def default_shape(model: str, sku: str, backend: Backend, gpus: int) -> PinnedShape:
    """The workers that AI Configurator's `generate` deploys: the smallest that hold the model.

    It takes the first power of two of GPUs whose memory exceeds one and a half times the weights,
    at two bytes each, and as many replicas as there are GPUs for.

    Args:
        model: its id, or a folder with its `config.json`.
        sku: the GPU system.
        backend: of the workers.
        gpus: what there is for all of them.

    Raises:
        NoDefaultShapeError: the generator knows no such model, or its workers are of no size that
            can be replayed.
    """
    naive = runtime.load("aisimulate.generator.naive")
    try:
        made = naive.build_naive_generator_params(model, gpus, sku, backend)
    except (RuntimeError, ValueError) as error:
        raise NoDefaultShapeError(one_line(error)) from error
    worker = made["params"]["agg"]
    attention_dp = int(worker["data_parallel_size"])
    try:
        # It counts attention as one rank where experts are split, and writes all GPUs as its TP.
        return PinnedShape(
            tp=int(worker["gpus_per_worker"]) // attention_dp,
            attention_dp=attention_dp,
            moe_tp=int(worker["moe_tensor_parallel_size"]),
            moe_ep=int(worker["moe_expert_parallel_size"]),
            replicas=int(made["WorkerConfig"]["agg_workers"]),
        )
    except ValidationError as error:
        raise NoDefaultShapeError(str(error.errors()[0]["msg"])) from error

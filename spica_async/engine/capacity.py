"""KV capacity of a replica, from the very configuration and core that the replay loads."""

from __future__ import annotations

import json

from schemas.search_space import Role
from spica_async.engine import runtime
from spica_async.engine.config import (
    MEMORY_FRACTION_KEYS,
    Arguments,
    SampleView,
    Tables,
    engine_config,
)
from spica_async.engine.launch import normalized_engine
from spica_async.engine.refusals import ShapeRejectedError, rejections
from spica_async.engine.tables import prepared_tables


def kv_tokens_per_rank(sample: SampleView, role: Role) -> int:
    """Tokens whose keys and values one attention-DP rank of one replica holds.

    Which shapes were measured and what else the engine refuses, it looks up once for all batch
    limits of a deployment: that takes most of a second for a large MoE.

    Raises:
        ShapeRejectedError: as `normalized_engine`.
        ValueError: as `normalized_engine`.
    """
    tables = prepared_tables(sample["hardware_sku"], sample["backend"])
    unlimited = engine_config({**sample, f"{role}_max_num_batched_tokens": None}, role, tables)
    deployment = json.dumps(unlimited, sort_keys=True)
    if tables is not None and deployment in _accepted:
        blocks = _blocks_of_accepted(engine_config(sample, role, tables), tables)
        return blocks * int(sample[f"{role}_block_size"])
    try:
        engine = normalized_engine(sample, role)["engine"]
    except ShapeRejectedError as error:
        if error.kind == "no_kv_room":  # The last of its checks: all others were passed.
            _accepted.add(deployment)
        raise
    _accepted.add(deployment)
    return int(engine["num_gpu_blocks"]) * int(engine["block_size"])


_accepted: set[str] = set()
"""Launch configurations without batch limits, as JSON, that the engine takes if there is room."""


def _blocks_of_accepted(config: Arguments, tables: Tables) -> int:
    """KV blocks per rank under a configuration that the engine takes, by its own formula."""
    engine = config["engine"]
    timing = engine["timing_model"]["config"]
    same_name = ("moe_backend", "moe_ep_size", "moe_tp_size")
    with rejections():
        return int(
            runtime.load("aisimulate.capacity").estimate_num_gpu_blocks(
                backend_name=timing["backend"],
                system=timing["system"],
                model_path=timing["model"],
                tp_size=timing["tp"],
                pp_size=timing["pp"],
                attention_dp_size=timing["attention_dp"],
                block_size=engine["block_size"],
                max_num_batched_tokens=engine["max_num_batched_tokens"],
                max_num_sequences=engine["max_num_seqs"],
                backend_version=tables.version,
                systems_path=str(tables.systems),
                **{name: timing[name] for name in same_name if name in timing},
                **{name: config[name] for name in MEMORY_FRACTION_KEYS.values() if name in config},
            )
        )

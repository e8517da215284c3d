"""A fingerprint of what a sweep searches, by which it is known again when the sweep is resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence

from schemas.search_space import DeploymentMode
from spica_async.space.branch import BranchSpace, Selection


def plan_digest(
    branches: Iterable[BranchSpace], seeds: Mapping[DeploymentMode, Sequence[Selection]]
) -> str:
    """The same for plans under which a proposal means the same, and another one for others.

    Of 64 hexadecimal digits. It takes a second for the largest pools.

    Args:
        branches: of the plan.
        seeds: what each of them tries first.
    """
    digest = hashlib.sha256()
    for space in branches:
        digest.update(json.dumps(_described(space), sort_keys=True).encode())
        # The rows in full, which older journals have the digest of.
        for blocks in (space.pool.index_blocks(), space.pool.legal_blocks()):
            for block in blocks:
                digest.update(block.tobytes())
        tried = [space.assignment_of(seed) for seed in seeds.get(space.mode, ())]
        digest.update(json.dumps(tried, sort_keys=True).encode())
    return digest.hexdigest()


def _described(space: BranchSpace) -> dict[str, object]:
    return {
        "mode": space.mode,
        "knobs": [[knob.name, list(knob.entries)] for knob in (space.backend, *space.knobs)],
        "ignored": {backend: sorted(names) for backend, names in space.ignored.items()},
        "kv_load": space.kv_load,
        "gpu_budget": space.gpu_budget,
        "roles": space.pool.roles,
        "deployments": [[str(one) for one in options] for options in space.pool.deployments],
        "backends": space.pool.backends,
        "shapes": [
            (len(space.pool), len(options)) for options in (space.pool.roles, space.pool.backends)
        ],
    }

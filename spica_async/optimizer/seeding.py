"""Random seeds that depend on a study and a purpose, and on nothing else."""

from __future__ import annotations

import hashlib
import json

from spica_async.optimizer.types import Study


def derive_seed(study: Study, purpose: str, number: int = 0) -> int:
    """Returns a seed in [0, 2**63) for one use of randomness in a study.

    It is the same in every process and differs with the study's seed and branch, the purpose and
    the number.
    """
    # JSON keeps the parts apart: no two different lists give the same text.
    text = json.dumps([study.seed, study.branch, purpose, number])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1

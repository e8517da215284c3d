"""Which requests ask one and the same question."""

from __future__ import annotations

import hashlib
import json
from typing import Final

from schemas.messages import EvaluationRequest
from spica_async.engine.model_files import named_by_content
from spica_async.space.sample import sample_key

# Counted up whenever the engine is handed a sample or a load in another way, or a report is read
# otherwise.
_FORM: Final = 1
# Where a trace lies says nothing of what is in it.
_WHEREABOUTS: Final = frozenset({"path", "sources"})


def cache_key(request: EvaluationRequest, *, fingerprint: str) -> str:
    """What the answer to a request depends on, as 64 hexadecimal digits.

    That is the sample, the load, the SLA and the engine, and neither who asks nor for how long. A
    model and performance data of the user's own are in it by their digests: see `named_by_content`
    and `engine_fingerprint`.

    Args:
        request: The question.
        fingerprint: Of the engine that is asked; see `engine_fingerprint`.
    """
    sla = request.sla
    # Without what an older version did not know, so that what that has measured is found.
    unsaid = {"window"} if getattr(request.load, "window", None) == "whole" else set()
    question = {
        "form": _FORM,
        "engine": fingerprint,
        "sample": sample_key(named_by_content(request.sample, request.model)),
        "load": request.load.model_dump(mode="json", exclude={*_WHEREABOUTS, *unsaid}),
        "sla": None if sla is None else sla.model_dump(mode="json"),
    }
    text = json.dumps(question, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()

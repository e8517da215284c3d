"""Whether a replay here may have read files that only this worker has."""

from __future__ import annotations

import os
from typing import Final

from schemas.messages import Sample

# Of the engine's core: folders of the user's own for performance data and models, among others.
_SETTINGS: Final = "AICONFIGURATOR_"


def uses_own_files(sample: Sample) -> bool:
    """Whether the engine is set up with files of our own, or takes the sample's model from one.

    Two workers with one engine may then answer the same question otherwise.

    Args:
        sample: As it came in; anything may be in it.
    """
    model = str(sample.get("model_name", ""))
    return (
        # The same that the coordinator takes for a path; see `result_cache.cache_key`.
        model.startswith((".", "~", "/"))
        or os.path.exists(model)  # noqa: PTH110  # it raises nothing, whatever the name
        or any(name.startswith(_SETTINGS) for name in os.environ)
    )

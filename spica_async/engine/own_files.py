"""Whether files of the user's own have a say in what the engine answers here."""

from __future__ import annotations

import os
from typing import Final

# Of the engine's core: folders of the user's own for performance data and models, among others.
_SETTINGS: Final = "AICONFIGURATOR_"


def depends_on_own_files(model: str) -> bool:
    """Whether the engine is set up with files of the user's own, or takes the model from one.

    They may change, and be others elsewhere. Two processes with one engine may then answer the
    same question otherwise.

    Args:
        model: A name, or a path; one that is no path here may be one elsewhere.
    """
    return (
        model.startswith((".", "~", "/"))
        or os.path.exists(model)  # noqa: PTH110  # it raises nothing, whatever the name
        or any(name.startswith(_SETTINGS) for name in os.environ)
    )

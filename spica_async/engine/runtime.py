"""The door to the engine's libraries: loaded late, quiet, and without a network.

They take seconds to import and belong into child processes, so no module of ours imports them at
its top.
"""

from __future__ import annotations

import importlib
import logging
import os
import warnings
from typing import Any, Final

_ENVIRONMENT: Final = {
    # Read once, at import: under the KV router Dynamo otherwise logs a line per request.
    "DYN_LOG": "error",
    "RUST_LOG": "error",
    # Each import would leave a logging configuration for SGLang in the temporary folder.
    "DYN_SKIP_SGLANG_LOG_FORMATTING": "1",
    "HF_HUB_OFFLINE": "1",
}
_NOISY_LOGGERS: Final = (
    "aiconfigurator",
    "aiconfigurator_core",
    "aisimulate",
    "aisimulate_core",
    "cmdstanpy",
    "dynamo",
    "pmdarima",
    "prophet",
)
# Whose warnings nobody can act on here: fits that do not converge, renamed keywords.
_NOISY_MODULES: Final = ("dynamo", "pmdarima", "prophet", "sklearn", "statsmodels")


def prepare() -> None:
    """Make the engine's libraries quiet and keep them off the network. Cheap, may be repeated.

    Variables that are already set stay as they are, so that a log level may be raised from
    outside.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    for module in _NOISY_MODULES:
        warnings.filterwarnings("ignore", module=rf"{module}(\.|$)")


def is_fault(error: BaseException) -> bool:
    """Whether an error is of one call alone, rather than an order to end the process.

    A panic of the native core is no Exception, and yet it ends this call only.
    """
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def load(name: str) -> Any:
    """One of the engine's modules, imported quietly.

    Some of them replace the root logger's handlers when they are imported; ours are put back.

    Raises:
        ImportError: if the engine is not installed.
    """
    prepare()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        return importlib.import_module(name)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)

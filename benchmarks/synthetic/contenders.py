"""Who searches, by the names that tables and `--contenders` use."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from pydantic import TypeAdapter

from schemas.config import OptimizerSettings
from spica_async.optimizer.port import Sampler
from spica_async.optimizer.profiles import open_sampler
from spica_async.optimizer.types import Study
from synthetic.optuna_sampler import OptunaSampler

STOCK = "vizier_default"
OPTUNA = {"optuna_tpe": "tpe", "optuna_gp": "gp"}
CONTENDERS = ("fast", "random", *OPTUNA)

_SUGGEST_TIMEOUT_SECONDS = 900.0
"""Nothing is to be cut short, on a slow machine either."""


def open_contender(
    name: str, study: Study, *, optuna_python: Path, log_folder: Path
) -> AbstractAsyncContextManager[Sampler]:
    """A sampler for the study, in a process of its own where it needs one.

    Args:
        name: one of `CONTENDERS`, or `STOCK`.
        study: what to search.
        optuna_python: the interpreter that has Optuna.
        log_folder: where our optimizers' stderr is appended.
    """
    if name in OPTUNA:
        return OptunaSampler.open(study, OPTUNA[name], optuna_python)
    return open_sampler(
        study,
        TypeAdapter(OptimizerSettings).validate_python({"profile": name}),
        suggest_timeout_seconds=_SUGGEST_TIMEOUT_SECONDS,
        log_path=log_folder / f"{name}.log",
    )

"""What a worker replays with beside the engine: a model that comes with its request, own data."""

from __future__ import annotations

from schemas.messages import EvaluationRequest
from spica_async.engine.model_files import ModelFilesError, folder_of
from spica_async.engine.own_files import own_files_have_changed
from spica_async.processes.threads import with_files
from workers.port import UnavailableError

_SHOWN_DIGITS = 12


class ModelUnavailableError(UnavailableError):
    """A model's files are not what their digest says, or can be written nowhere."""

    cause = "model_unavailable"


class DataChangedError(UnavailableError):
    """Nobody knows what was measured, for the data is not that of the worker's start."""

    cause = "performance_data_changed"


async def with_model_folder(request: EvaluationRequest) -> EvaluationRequest:
    """The request as a child is to get it: the model lies in a folder of this host's cache.

    Raises:
        ModelUnavailableError: it cannot be had here.
    """
    model = request.model
    if model is None:
        return request
    try:
        folder = await with_files(folder_of, model)
    except ModelFilesError as error:
        raise ModelUnavailableError(f"model {model.sha256[:_SHOWN_DIGITS]}: {error}") from error
    sample = {**request.sample, "model_name": str(folder)}
    # The child reads the folder.
    return request.model_copy(
        update={"sample": sample, "model": model.model_copy(update={"content": ""})}
    )


async def check_own_data() -> None:
    """See that what was just measured was measured with what the worker's queue stands for.

    Raises:
        DataChangedError: the files that `AICONFIGURATOR_*` names have changed.
    """
    if await with_files(own_files_have_changed):
        raise DataChangedError(
            "performance data that AICONFIGURATOR_* names has changed since this worker was"
            " started: start it again"
        )

"""Models of the user's own: the files that the engine reads of a folder, known by their digest.

A replay gives the engine a folder that is named by the digest and holds just these
files. So it matters neither where the user's folder lies nor what becomes of it meanwhile.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import importlib.util
import json
import os
import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from schemas.messages import ModelFiles, Sample
from spica_async.engine.kept_folders import note_use, write_folder
from spica_async.errors import file_problem
from spica_async.places import process_folder, user_cache_folder

CONFIG: Final = "config.json"
QUANTIZATION: Final = "hf_quant_config.json"

FILES: Final = (
    CONFIG,
    QUANTIZATION,
    "preprocessor_config.json",
    "video_preprocessor_config.json",
)
"""All that the engine looks for in a model's folder. It does without any but the first."""

MAX_BYTES: Final = 16 * 2**20
"""Of the unpacked files together; the largest that ships with the engine has 6 MB."""
MAX_PACKED_BYTES: Final = 512 * 2**10
"""Of the compressed files together: they go into every request, and a message has a bound."""

_TEXTS: Final = TypeAdapter(dict[str, str])
_CORE: Final = "aisimulate_core"


class ModelFilesError(Exception):
    """The files of a model cannot be read, packed, unpacked or written; the message says why."""


def core_folder() -> Path:
    """Where the engine's core is installed, which is not imported for it."""
    spec = importlib.util.find_spec(_CORE)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(_CORE)
    return Path(spec.submodule_search_locations[0])


@cache
def packaged_models() -> frozenset[str]:
    """The ids of `facts.known_models`, without the engine, which takes seconds to import.

    Those are the models whose configuration lies in its folder and whom its list names.
    """
    source = (core_folder() / "sdk" / "common.py").read_text(encoding="utf-8")
    suffix = f"_{CONFIG}"
    there = (path.name for path in (core_folder() / "model_configs").glob(f"*--*{suffix}"))
    ids = (name.removesuffix(suffix).replace("--", "/") for name in there)
    return frozenset(name for name in ids if f'"{name}"' in source)


def leave_namesake(model: str) -> None:
    """See that nothing in the current folder is called like a model that ships with the engine.

    The engine would take it for the model. Where there is such a thing, this process goes to
    another folder, so it is for child processes.
    """
    if os.path.lexists(model):
        os.chdir(Path(__file__).parent)  # In here nobody puts models.


def named_by_content(sample: Sample, files: ModelFiles | None) -> Sample:
    """The sample of a request that brings the model's files, if it does.

    Its `model_name` says which they are. A worker that knows nothing of such files takes that for
    an id: it is no path, and no address can be made of it, so all that it can do is to fail.
    """
    if files is None:
        return sample
    return {**sample, "model_name": f"files with SHA-256 {files.sha256}"}


def own_model(name: str) -> ModelFiles | None:
    """The files of a model that is called by its folder.

    Args:
        name: An absolute path, or anything else, which is taken for an id: no folder that is
            called like a model may stand in for it.

    Returns:
        None if it is no folder with a `config.json`.

    Raises:
        ModelFilesError: one of the files cannot be read, or they are too large.
    """
    folder = Path(name)
    if not folder.is_absolute():
        return None
    try:
        return _read(folder) if (folder / CONFIG).is_file() else None
    except OSError as error:
        where = error.filename or name
        raise ModelFilesError(f"{where}: {file_problem(error)}") from None


def _read(folder: Path) -> ModelFiles:
    texts: dict[str, str] = {}
    total = 0
    for name in FILES:
        path = folder / name
        if not path.exists():
            continue
        if not path.is_file():  # To open a pipe is to wait for its writer.
            raise ModelFilesError(f"{path}: not a file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES - total + 1)
        total += len(content)
        if total > MAX_BYTES:
            raise ModelFilesError(
                f"{path}: with it the files that the engine reads have more than {MAX_BYTES:,}"
                " bytes, which is too much for a model's description"
            )
        try:
            texts[name] = content.decode()
        except UnicodeDecodeError as error:
            raise ModelFilesError(f"{path}: not a UTF-8 text ({error.reason})") from None
    files = pack(texts)
    if len(files.content) > MAX_PACKED_BYTES * 4 // 3:
        raise ModelFilesError(
            f"{folder}: the files that the engine reads have more than {MAX_PACKED_BYTES:,} bytes"
            " when compressed, too much to go with every request to a worker"
        )
    return files


def pack(texts: Mapping[str, str]) -> ModelFiles:
    """Files, by name, as they travel."""
    plain = json.dumps(texts, sort_keys=True, ensure_ascii=False).encode()
    return ModelFiles(
        sha256=hashlib.sha256(plain).hexdigest(),
        content=base64.b64encode(zlib.compress(plain, 9)).decode(),
    )


def unpack(files: ModelFiles) -> dict[str, str]:
    """The texts of files, by name.

    Raises:
        ModelFilesError: they are not what their digest says, or not a model's.
    """
    unpacking = zlib.decompressobj()
    try:
        packed = base64.b64decode(files.content, validate=True)
        # A few bytes can stand for gigabytes. Escapes and names take their part beside the texts.
        plain = unpacking.decompress(packed, 2 * MAX_BYTES)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise ModelFilesError(f"its files cannot be unpacked: {error}") from None
    if not unpacking.eof:
        raise ModelFilesError("its files are too large, or not whole")
    found = hashlib.sha256(plain).hexdigest()
    if found != files.sha256:
        raise ModelFilesError(f"its files have SHA-256 {found}, not {files.sha256}")
    try:
        texts = _TEXTS.validate_json(plain)
    except ValidationError:
        texts = {}
    if CONFIG not in texts or not texts.keys() <= set(FILES):
        raise ModelFilesError("its files are not those of a model")
    return texts


def models_folder() -> Path:
    """Where models are kept; may be removed whenever nothing is being planned or replayed."""
    return user_cache_folder().absolute() / "models"


def folder_of(files: ModelFiles) -> Path:
    """A folder with exactly these files, which is the same for all processes of this user.

    Without a cache that can be written to it is this process's own.

    Raises:
        ModelFilesError: they are not what their digest says, or can be written nowhere.
    """
    texts = unpack(files)
    try:
        return _written(models_folder(), files.sha256, texts)
    except OSError as first:
        # Imported late, since a child that has nothing to log starts 0.2 s sooner.
        import structlog  # noqa: PLC0415 - see above

        log = structlog.get_logger(__name__)
        log.warning("model_not_kept", folder=str(models_folder()), error=str(first))
    try:
        return _written(process_folder(), files.sha256, texts)
    except OSError as error:
        raise ModelFilesError(
            f"its files can be written nowhere: {error.filename}: {file_problem(error)}"
        ) from None


def _written(root: Path, sha256: str, texts: Mapping[str, str]) -> Path:
    """The folder of one model, written now unless it is there, as it should be."""
    folder = root / sha256

    def fill(empty: Path) -> None:
        for name, text in texts.items():
            (empty / name).write_bytes(text.encode())

    write_folder(folder, fill, is_whole=lambda: _holds(folder, texts))
    note_use(folder)
    return folder


def _holds(folder: Path, texts: Mapping[str, str]) -> bool:
    """Whether the engine would read these texts there: a crash may have left others."""
    for name in FILES:
        try:
            content = (folder / name).read_bytes()
        except FileNotFoundError:
            if name in texts:
                return False
        except OSError:  # It is no file, or not ours.
            return False
        else:
            if name not in texts or content != texts[name].encode():
                return False
    return True

"""Reads a configuration file, and says what is wrong with it in the reader's own terms."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from schemas.base import FieldError, shown
from schemas.config import SmartSearchConfig
from schemas.presets import COMPOSITE_MODELS
from spica_async.config.changes import changed
from spica_async.documents import MOST_BYTES, decode, dotted, parse_json, parse_yaml
from spica_async.engine.model_files import packaged_models
from spica_async.engine.model_folder import is_model_folder
from spica_async.errors import InputError, file_problem, printable

_LONGEST_PATH: Final = 300

_MOST_PROBLEMS: Final = 20
"""No person reads more at once, and the names of all keys may stand in each."""


def load_config(path: Path, changes: Sequence[str] = ()) -> SmartSearchConfig:
    """Read and validate one configuration; relative paths in it start at its own folder.

    Args:
        path: the file.
        changes: values in place of those in the file; see `changed`.

    Raises:
        InputError: if the file cannot be read or breaks a rule. Every problem has a line of its
            own that begins with the field's path.
    """
    document = changed(_read(path), changes)
    try:
        config = SmartSearchConfig.model_validate(document)
    except ValidationError as error:
        problems = "\n".join(f"  {problem}" for problem in describe(error))
        raise InputError(f"{path}:\n{problems}") from None
    return _resolve_paths(config, path.resolve().parent)


def describe(error: ValidationError, model: type[BaseModel] = SmartSearchConfig) -> list[str]:
    """One line per problem, `field.path: what is wrong and what is allowed`; the first of many."""
    problems = error.errors(include_url=False)
    lines = [_describe_one(details, model) for details in problems[:_MOST_PROBLEMS]]
    if len(problems) > _MOST_PROBLEMS:
        lines.append(f"and {len(problems) - _MOST_PROBLEMS:,} more problems")
    return lines


def _read(path: Path) -> dict[str, Any]:
    """The document in a file: JSON where its name says so, or else YAML, which JSON mostly is."""
    try:
        with path.open("rb") as file:
            body = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {file_problem(error)}") from None
    parse = parse_json if path.suffix == ".json" else parse_yaml
    try:
        return parse(decode(body))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _resolve_paths(config: SmartSearchConfig, folder: Path) -> SmartSearchConfig:
    model = folder / config.search_space.model_name
    # Anything else is a model's id, though it may look like a path; and so is the id of a model
    # that ships with the engine, whatever lies here.
    if config.search_space.model_name not in packaged_models() and _is_model_folder(model):
        name = str(_resolved("search_space.model_name", model))
        space = config.search_space.model_copy(update={"model_name": name})
        config = config.model_copy(update={"search_space": space})
    trace = config.workload.trace_path
    if trace is None:
        return config
    try:
        trace = trace.expanduser()
    except RuntimeError:
        shown = printable(str(trace), _LONGEST_PATH)
        raise InputError(f"workload.trace_path: {shown} starts at no known user's home") from None
    path = _resolved("workload.trace_path", folder / trace)
    workload = config.workload.model_copy(update={"trace_path": path})
    return config.model_copy(update={"workload": workload})


def _is_model_folder(path: Path) -> bool:
    try:
        return is_model_folder(path)
    except OSError as error:
        raise InputError(
            f"search_space.model_name: {printable(str(path), _LONGEST_PATH)}: {file_problem(error)}"
        ) from None


def _resolved(field: str, path: Path) -> Path:
    """The path that messages and journals are to have, which are text."""
    try:
        resolved = path.resolve()
        str(resolved).encode()
    except (OSError, RuntimeError, ValueError) as error:
        name = printable(str(path), _LONGEST_PATH)
        raise InputError(f"{field}: {name}: {file_problem(error)}") from None
    return resolved


def _describe_one(details: ErrorDetails, model: type[BaseModel]) -> str:
    location: list[int | str] = list(details["loc"])
    problem = details["msg"]
    cause = details.get("ctx", {}).get("error")
    if isinstance(cause, FieldError):
        location.append(cause.field)
        problem = cause.problem
    elif cause is not None:
        problem = str(cause)
    elif details["type"] == "extra_forbidden":
        problem = _unknown_key(str(location[-1]), _known_keys(model, location[:-1]))
    elif details["type"] == "missing":
        problem = "required"
    else:
        problem = f"{problem[0].lower()}{problem[1:]}, not {shown(details['input'])}"
    return f"{dotted(location)}: {problem}" if location else problem


def _unknown_key(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    if close:
        return f"unknown key; did you mean {close[0]}?"
    return f"unknown key; known are {', '.join(known)}" if known else "unknown key"


def _known_keys(model: type[BaseModel], location: Iterable[int | str]) -> list[str]:
    """The keys that the model at `location` takes; empty where it is not one of ours."""
    models = [model]
    for step in location:
        if isinstance(step, int):
            continue
        annotations = [m.model_fields[step].annotation for m in models if step in m.model_fields]
        models = [found for annotation in annotations for found in _models_in(annotation)]
        # Their mappings are kept as they are written, so the annotation says nothing of the keys.
        models += [COMPOSITE_MODELS[step]] if step in COMPOSITE_MODELS else []
    return sorted({name for found in models for name in found.model_fields})


def _models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for inner in get_args(annotation) for found in _models_in(inner)]

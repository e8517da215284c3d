"""Reads a configuration file, and says what is wrong with it in the reader's own terms."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any, Final, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from schemas.base import FieldError
from schemas.config import SmartSearchConfig
from schemas.search_space import COMPOSITE_MODELS
from spica_async.engine.model_files import packaged_models
from spica_async.errors import InputError

_MOST_PROBLEMS: Final = 20
"""No person reads more at once, and the names of all keys may stand in each."""


def load_config(path: Path) -> SmartSearchConfig:
    """Read and validate one configuration; relative paths in it start at its own folder.

    Raises:
        InputError: if the file cannot be read or breaks a rule. Every problem has a line of its
            own that begins with the field's path.
    """
    document = _read_yaml(path)
    try:
        config = SmartSearchConfig.model_validate(document)
    except ValidationError as error:
        problems = "\n".join(f"  {problem}" for problem in describe(error))
        raise InputError(f"{path}:\n{problems}") from None
    return _resolve_paths(config, path.resolve().parent)


def describe(error: ValidationError, model: type[BaseModel] = SmartSearchConfig) -> list[str]:
    """One line per problem, `field.path: what is wrong and what is allowed`; the first of many."""
    problems = error.errors(include_url=False)
    told = [_describe_one(details, model) for details in problems[:_MOST_PROBLEMS]]
    if len(problems) > _MOST_PROBLEMS:
        told.append(f"and {len(problems) - _MOST_PROBLEMS:,} more problems")
    return told


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a UTF-8 text file ({error.reason})") from None
    except OSError as error:
        raise InputError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    try:
        return parse_yaml(text)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def parse_yaml(text: str) -> dict[str, Any]:
    """The mapping that a configuration's text is, not validated.

    Raises:
        InputError: it is none; the message names the line where there is one.
    """
    try:
        document = yaml.load(text, Loader=_UniqueKeyLoader)  # noqa: S506  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}" if mark else "somewhere"
        raise InputError(f"{where}: not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # The two others are of scalars that look like a date or number and are none, and of depth.
        raise InputError(f"not valid YAML: {error}") from None
    if not isinstance(document, dict):
        blocks = ", ".join(SmartSearchConfig.model_fields)
        raise InputError(f"a configuration is a mapping with the blocks {blocks}")
    return document


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML that refuses a key written twice, of which the plain loader keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002  # the overridden signature
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = str(key_node.value)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key} is written twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _resolve_paths(config: SmartSearchConfig, folder: Path) -> SmartSearchConfig:
    model = folder / config.search_space.model_name
    # Anything else is a model's id, though it may look like a path; and so is the id of a model
    # that ships with the engine, whatever lies here.
    if (
        config.search_space.model_name not in packaged_models()
        and (model / "config.json").is_file()
    ):
        space = config.search_space.model_copy(update={"model_name": str(model.resolve())})
        config = config.model_copy(update={"search_space": space})
    trace = config.workload.trace_path
    if trace is None:
        return config
    try:
        path = (folder / trace.expanduser()).resolve()
    except RuntimeError:
        raise InputError(f"workload.trace_path: {trace} starts at no known user's home") from None
    workload = config.workload.model_copy(update={"trace_path": path})
    return config.model_copy(update={"workload": workload})


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
        problem = f"{problem[0].lower()}{problem[1:]}, not {details['input']!r}"
    return f"{_dotted(location)}: {problem}" if location else problem


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


def _dotted(location: Iterable[int | str]) -> str:
    dotted = ""
    for step in location:
        if isinstance(step, int) or step.startswith("["):
            dotted += f"[{step}]" if isinstance(step, int) else step
        else:
            dotted += f".{step}" if dotted else step
    return dotted

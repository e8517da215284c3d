"""Reads a sweep that is submitted to a daemon, with the errors that `spica-async check` has."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from pydantic import ValidationError

from schemas.config import SmartSearchConfig
from schemas.daemon import SweepSubmission
from spica_async.config.load import describe
from spica_async.documents import check_values, decode, parse_json, parse_yaml
from spica_async.errors import InputError, printable

_LONGEST_PATH: Final = 100


@dataclass(frozen=True, slots=True)
class Submission:
    """A sound configuration, and how its sweep is to be run; see `SweepSubmission`."""

    config: SmartSearchConfig
    priority: int
    use_cache: bool


def read_submission(
    body: bytes, *, is_yaml: bool, priority: int | None = None, use_cache: bool | None = None
) -> Submission:
    """Read a submission as JSON, or a configuration alone as YAML.

    Args:
        body: UTF-8.
        is_yaml: whether it is a configuration as YAML.
        priority: goes before what the body says; none: the body, or the default.
        use_cache: goes before what the body says; none: the body, or the default.

    Raises:
        InputError: it is no sound submission; the message names the field or the line.
    """
    text = decode(body)
    submission = SweepSubmission(config={}) if is_yaml else _from_json(text)
    config = config_from_document(parse_yaml(text) if is_yaml else submission.config)
    return Submission(
        config,
        priority=submission.priority if priority is None else priority,
        use_cache=submission.use_cache if use_cache is None else use_cache,
    )


def _from_json(text: str) -> SweepSubmission:
    try:
        document = parse_json(text)
    except InputError as error:
        # Fields are named as they are where the configuration is a file.
        raise InputError(str(error).removeprefix("config.")) from None
    try:
        return SweepSubmission.model_validate(document)
    except ValidationError as error:
        raise InputError("\n".join(describe(error, SweepSubmission))) from None


def config_from_document(document: Mapping[str, Any]) -> SmartSearchConfig:
    """The configuration that a document holds.

    Raises:
        InputError: it breaks a rule.
    """
    check_values(document)
    try:
        config = SmartSearchConfig.model_validate(document)
    except ValidationError as error:
        raise InputError("\n".join(describe(error))) from None
    trace = config.workload.trace_path
    if trace is not None and not trace.is_absolute():
        shown = printable(str(trace), _LONGEST_PATH)
        raise InputError(
            f"workload.trace_path: {shown} is relative, and there is no file that it could be"
            " relative to; give the absolute path on the daemon's machine"
        )
    return config


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """The folders of the daemon's host below which submissions may name a trace or a model.

    Attributes:
        roots: resolved; empty: no file may be named. None: any file may.
    """

    roots: tuple[str, ...] | None = ()

    @classmethod
    def below(cls, folders: Iterable[Path]) -> Self:
        """The files below some folders.

        Raises:
            InputError: naming `--trace-root`: one is no folder.
        """
        roots = []
        for folder in folders:
            root = os.path.realpath(folder)
            if not os.path.isdir(root):  # noqa: PTH112  # it raises nothing, whatever the name
                raise InputError(f"--trace-root {folder}: there is no such folder")
            roots.append(root)
        return cls(tuple(roots))

    def check(self, config: SmartSearchConfig) -> None:
        """Refuse a configuration that names another file, whether that exists or not.

        Blocks where the file system does.

        Raises:
            InputError: naming the field.
        """
        trace, model = config.workload.trace_path, config.search_space.model_name
        if trace is not None:
            self._check("workload.trace_path", str(trace))
        # Anything else is taken for a model's id, whatever lies in the daemon's folder.
        if model.startswith("/"):
            self._check("search_space.model_name", model)

    def _check(self, field: str, path: str) -> None:
        if self.roots is None:
            return
        if not self.roots:
            raise InputError(
                f"{field}: {path}: files of the daemon's host cannot be named here; start it with"
                " --trace-root DIR for those below a folder"
            )
        found = os.path.realpath(path)
        if not any(Path(found).is_relative_to(root) for root in self.roots):
            raise InputError(f"{field}: {path} is not below --trace-root {', '.join(self.roots)}")


NO_FILE: Final = LocalFiles()
ANY_FILE: Final = LocalFiles(None)
"""For the daemon's own user, who could read any of them anyway."""

"""Which files of the daemon's host a submission may name."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from schemas.config import SmartSearchConfig
from spica_async.errors import InputError


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """The folders below which submissions may name a trace or a model's folder.

    Attributes:
        roots: resolved; none: no file at all. None: any file, for who could read it anyway.
    """

    roots: tuple[str, ...] | None = ()

    @classmethod
    def below(cls, folders: Iterable[Path]) -> Self:
        """Those below some folders.

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
        """Refuse a submission that names another file; whether there is one shows nowhere.

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
"""For who is the daemon's own user."""

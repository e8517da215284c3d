"""A daemon in a process of its own, as a user runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Daemon:
    """A daemon's process and where it listens."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url


@contextmanager
def served(folder: Path, *options: str) -> Iterator[Daemon]:
    with subprocess.Popen(
        [sys.executable, "-m", "spica_async", "serve", "--port", "0", *options],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                found = re.search(r"^serving at (\S+),", line)
                if found:
                    break
            else:
                raise AssertionError("it has ended")
            yield Daemon(process, found[1])
        finally:
            process.kill()
            process.communicate()

"""Where log lines go: stderr, or a file beside the results."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import structlog


def log_warnings_to_stderr() -> None:
    """Before there is a results folder, only warnings matter."""
    _log_to(sys.stderr, logging.WARNING)


def log_to_stderr(*, as_json: bool = False) -> None:
    """Everything from here on goes to stderr, one line per event but for tracebacks."""
    _log_to(sys.stderr, logging.INFO, structlog.processors.JSONRenderer() if as_json else None)


@contextmanager
def logging_to_file(path: Path) -> Iterator[None]:
    """Everything goes to `path` while the context is open, one JSON-free line per event."""
    with path.open("a", encoding="utf-8", buffering=1) as file:
        _log_to(file, logging.INFO)
        try:
            yield
        finally:
            log_warnings_to_stderr()


def _log_to(stream: TextIO, level: int, renderer: structlog.typing.Processor | None = None) -> None:
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            renderer or structlog.dev.ConsoleRenderer(colors=stream.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=False,
    )
    for library in ("aio_pika", "aiormq"):
        # What they warn of is logged as the state of the bus, in lines of ours.
        logging.getLogger(library).setLevel(logging.CRITICAL)

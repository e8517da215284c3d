"""Where the coordinator's log lines go: a file beside the results, or only warnings to stderr."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TextIO

import structlog


def log_warnings_to_stderr() -> None:
    """Before there is a results folder, only warnings matter."""
    _configure(sys.stderr, logging.WARNING, colors=sys.stderr.isatty())


def log_to_file(path: Path) -> None:
    """Everything from here on goes to `path`, one JSON-free line per event."""
    _configure(path.open("a", encoding="utf-8", buffering=1), logging.INFO, colors=False)


def _configure(stream: TextIO, level: int, *, colors: bool) -> None:
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer(colors=colors),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=False,
    )
    for library in ("aio_pika", "aiormq"):
        # What they warn of is told as the state of the bus, in lines of ours.
        logging.getLogger(library).setLevel(logging.CRITICAL)

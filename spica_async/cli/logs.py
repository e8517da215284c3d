"""Where log lines go: a file beside the results, or only warnings to stderr."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TextIO

import structlog


def log_warnings_to_stderr() -> None:
    """Before there is a results folder, only warnings matter."""
    log_to(sys.stderr, logging.WARNING, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()))


def log_to_file(path: Path) -> None:
    """Everything from here on goes to `path`, one JSON-free line per event."""
    file = path.open("a", encoding="utf-8", buffering=1)
    log_to(file, logging.INFO, structlog.dev.ConsoleRenderer(colors=False))


def log_to(stream: TextIO, level: int, renderer: structlog.typing.Processor) -> None:
    """Everything from here on that is of this level or above goes to `stream`."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=False,
    )
    for library in ("aio_pika", "aiormq"):
        # What they warn of is told as the state of the bus, in lines of ours.
        logging.getLogger(library).setLevel(logging.CRITICAL)

"""Where a worker's log lines go: to stderr, for a person or for a machine to read."""

from __future__ import annotations

import logging
import sys

import structlog


def log_to_stderr(*, as_json: bool) -> None:
    """Everything from here on goes to stderr, one line per event but for tracebacks."""
    renderer: structlog.typing.Processor = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    if as_json:
        renderer = structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
    for library in ("aio_pika", "aiormq"):
        # What they warn of is told as the state of the bus, in lines of ours.
        logging.getLogger(library).setLevel(logging.CRITICAL)

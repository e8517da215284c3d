"""Where a worker's log lines go: to stderr, for a person or for a machine to read."""

from __future__ import annotations

import logging
import sys

import structlog

from spica_async.cli.logs import log_to


def log_to_stderr(*, as_json: bool) -> None:
    """Everything from here on goes to stderr, one line per event but for tracebacks."""
    renderer: structlog.typing.Processor = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    if as_json:
        renderer = structlog.processors.JSONRenderer()
    log_to(sys.stderr, logging.INFO, renderer)

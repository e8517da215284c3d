"""`spica-async check`: what a sweep would search."""

from __future__ import annotations

import asyncio

from spica_async.cli.options import Changes, ConfigPath


def check(config: ConfigPath, *, changes: Changes = None) -> None:
    """Show what would be searched, what would not and why.

    No candidate is replayed; the engine is tried with one request per backend and mode.
    """
    from spica_async.cli.logs import log_warnings_to_stderr
    from spica_async.config.inputs import inputs_of
    from spica_async.config.load import load_config
    from spica_async.report.screen import ProgressConsole, showing
    from spica_async.report.tables import plan_view, print_view

    log_warnings_to_stderr()
    progress = ProgressConsole()
    inputs = inputs_of(load_config(config, changes or ()), progress.print_line)
    with showing(inputs.config.goal, progress) as display:
        plan = asyncio.run(inputs.plan(display.planning))
    print_view(plan_view(plan))

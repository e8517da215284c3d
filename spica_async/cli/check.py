"""`spica-async check`: what a sweep would search."""

from __future__ import annotations

import asyncio
from pathlib import Path

from spica_async.cli.logs import log_warnings_to_stderr
from spica_async.config.inputs import read_inputs
from spica_async.plan.types import SweepPlan
from spica_async.report.screen import ProgressConsole, showing
from spica_async.report.tables import plan_view, print_view


def check_command(path: Path) -> None:
    """Plan a sweep and print the plan.

    Raises:
        SpicaError: if there is nothing to search; an `InputError` if that is the input's fault.
    """
    log_warnings_to_stderr()
    progress = ProgressConsole()
    inputs = read_inputs(path, lambda line: progress.print(line, markup=False, soft_wrap=True))

    async def plan() -> SweepPlan:
        with showing(inputs.config.goal, progress) as display:
            return await inputs.plan(display.planning)

    print_view(plan_view(asyncio.run(plan())))

"""A worker's process: the program of `workers`, with children that `support.faults.evaluator` has.

Takes the broker's URL and, as JSON, what of `WorkerOptions` is to be otherwise than by default;
`delivery_limit`, if it is there, is that of every queue.
"""

from __future__ import annotations

import json
import sys

from spica_async.bus import topology
from spica_async.bus.address import BrokerAddress
from spica_async.cli.logs import log_to_stderr
from spica_async.errors import SpicaError
from workers.program import run_program
from workers.settings import ChildSettings, WorkerOptions


def main(url: str, document: str) -> None:
    """Work until a signal comes."""
    options = json.loads(document)
    topology.DELIVERY_LIMIT = options.pop("delivery_limit", topology.DELIVERY_LIMIT)  # type: ignore[misc]  # to get there sooner
    log_to_stderr(as_json=True)
    children = ChildSettings(
        evaluator="support.faults.evaluator:evaluate",
        warm_up=None,
        restart_pause_seconds=0.05,
        term_grace_seconds=0.5,
    )
    try:
        sys.exit(
            run_program(
                BrokerAddress.from_options(url), WorkerOptions(children=children, **options)
            )
        )
    except SpicaError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])

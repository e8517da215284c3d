"""`spica-async topology declare | check`: what the services share on a broker."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from spica_async.bus.address import BrokerAddress
from spica_async.bus.broker_options import naming
from spica_async.bus.limits import HOLD_MARGIN_SECONDS
from spica_async.bus.port import QueueSpec
from spica_async.bus.rabbitmq.audit import Finding, Standing, audit
from spica_async.bus.topology import COMMANDS_QUEUE, DEAD_QUEUE, requests_queue
from spica_async.cli.logs import log_warnings_to_stderr
from spica_async.engine.versions import engine_fingerprint
from spica_async.errors import InputError
from spica_async.report.tables import print_view

_GOOD = frozenset({Standing.OK, Standing.EXISTS})
_MEANING = {
    Standing.EXISTS: "this user may not declare it, and so not compare its arguments",
    Standing.MISSING: "make it with `spica-async topology declare`",
}


def topology_command(
    address: BrokerAddress,
    *,
    engines: Sequence[str],
    create: bool,
    hard_limit_seconds: float,
    as_json: bool,
) -> bool:
    """Make or check the shared exchanges and queues; tells whether all is as it should be.

    Args:
        address: of the broker.
        engines: fingerprints of the engines that workers have; none: the one installed here.
        create: make what is missing.
        hard_limit_seconds: that an evaluation may take; says what the broker must allow.
        as_json: print a document in place of a table.

    Raises:
        InputError: a fingerprint is none.
        SpicaError: the broker did not answer or refused us.
    """
    requests = _request_queues(engines or [engine_fingerprint()])

    log_warnings_to_stderr()

    with naming(address):
        found = asyncio.run(audit(address, [DEAD_QUEUE, COMMANDS_QUEUE, *requests], create=create))
    good = all(finding.standing in _GOOD for finding in found)
    if as_json:
        document = {
            "broker": address.shown,
            "sound": good,
            "findings": [asdict(finding) for finding in found],
            "hard_limit_seconds": hard_limit_seconds,
        }
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        print_view(_view(address, found, hard_limit_seconds))
    return good


def _request_queues(engines: Sequence[str]) -> list[QueueSpec]:
    try:
        return [requests_queue(engine) for engine in dict.fromkeys(engines)]
    except ValueError as error:
        raise InputError(f"--engine: {error}") from None


def _view(
    address: BrokerAddress, found: Sequence[Finding], hard_limit_seconds: float
) -> RenderableType:
    table = Table(title=f"topology of {address}", title_justify="left")
    for heading in ("", "name", "is", ""):
        table.add_column(heading)
    for finding in found:
        said = _MEANING.get(finding.standing, finding.detail)
        table.add_row(finding.kind, finding.name, finding.standing, Text(said))
    advice = (
        "not checked: the broker's consumer_timeout, which must be at least"
        f" {hard_limit_seconds + HOLD_MARGIN_SECONDS:g} s, as evaluations of up to"
        f" {hard_limit_seconds:g} s need"
    )
    return Group(table, Text(advice))

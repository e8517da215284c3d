"""`spica-async topology declare | check`: what the services share on a broker."""

from __future__ import annotations

import asyncio
import json as documents
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from spica_async.bus.limits import HOLD_MARGIN_SECONDS
from spica_async.cli.options import AsJson, BrokerFlags
from spica_async.errors import InputError
from spica_async.exit_codes import EXIT_FAULT

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spica_async.bus.address import BrokerAddress
    from spica_async.bus.rabbitmq.audit import Finding


def topology(
    action: Annotated[
        Literal["declare", "check"],
        typer.Argument(help="make what is missing, or only show what is"),
    ],
    *,
    flags: BrokerFlags,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            help="fingerprint of the engine that workers have; may be repeated; default: of this"
            " one",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Declare or check the queues and exchanges that all services share on a broker.

    The exit code is 1 if anything is missing, otherwise than it should be, or out of our rights.
    """
    from spica_async.bus.broker_options import broker_errors
    from spica_async.bus.rabbitmq.audit import Standing, audit
    from spica_async.bus.topology import COMMANDS_QUEUE, DEAD_QUEUE, requests_queue
    from spica_async.cli.logs import log_warnings_to_stderr
    from spica_async.engine.versions import engine_fingerprint
    from spica_async.report.tables import print_view

    address, limit = flags.address(), flags.limit_seconds()
    try:
        requests = map(requests_queue, dict.fromkeys(engine or [engine_fingerprint()]))
        queues = [DEAD_QUEUE, COMMANDS_QUEUE, *requests]
    except ValueError as error:
        raise InputError(f"--engine: {error}") from None
    log_warnings_to_stderr()
    with broker_errors(address):
        found = asyncio.run(audit(address, queues, create=action == "declare"))
    sound = all(finding.standing in (Standing.OK, Standing.EXISTS) for finding in found)
    if json:
        document = {
            "broker": address.shown,
            "sound": sound,
            "findings": [asdict(finding) for finding in found],
            "hard_limit_seconds": limit,
        }
        typer.echo(documents.dumps(document, indent=2))
    else:
        print_view(_view(address, found, limit))
    raise typer.Exit(0 if sound else EXIT_FAULT)


def _view(
    address: BrokerAddress, found: Sequence[Finding], hard_limit_seconds: float
) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from spica_async.bus.rabbitmq.audit import Standing

    advice = {
        Standing.EXISTS: "this user may not declare it, and so not compare its arguments",
        Standing.MISSING: "make it with `spica-async topology declare`",
    }
    table = Table("", "name", "is", "", title=f"topology of {address}", title_justify="left")
    for finding in found:
        detail = advice.get(finding.standing, finding.detail)
        table.add_row(finding.kind, finding.name, finding.standing, Text(detail))
    unchecked = (
        "not checked: the broker's consumer_timeout, which must be at least"
        f" {hard_limit_seconds + HOLD_MARGIN_SECONDS:g} s, as evaluations of up to"
        f" {hard_limit_seconds:g} s need"
    )
    return Group(table, Text(unchecked))

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
from spica_async.bus.consumer_timeout import ConsumerTimeout, Management, consumer_timeouts
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
    management: Management | None,
    hard_limit_seconds: float,
    as_json: bool,
) -> bool:
    """Make or check the shared exchanges and queues; tells whether all is as it should be.

    Args:
        address: of the broker.
        engines: fingerprints of the engines that workers have; none: the one installed here.
        create: make what is missing.
        management: the broker's management API, to look up the consumer timeout.
        hard_limit_seconds: that an evaluation may take, to be compared with it.
        as_json: print a document in place of a table.

    Raises:
        InputError: a fingerprint is none.
        SpicaError: the broker, or its management API, did not answer or refused us.
    """
    requests = _request_queues(engines or [engine_fingerprint()])

    log_warnings_to_stderr()

    async def look() -> tuple[list[Finding], list[ConsumerTimeout]]:
        found = await audit(address, [DEAD_QUEUE, COMMANDS_QUEUE, *requests], create=create)
        existing = {finding.name for finding in found if finding.standing is not Standing.MISSING}
        names = [spec.name for spec in requests if spec.name in existing]
        if management is None:
            return found, []
        return found, await consumer_timeouts(management, address.virtual_host, names)

    with naming(address):
        found, timeouts = asyncio.run(look())
    short = [timeout for timeout in timeouts if not timeout.allows(hard_limit_seconds)]
    good = not short and all(finding.standing in _GOOD for finding in found)
    if as_json:
        document = {
            "broker": address.shown,
            "sound": good,
            "findings": [asdict(finding) for finding in found],
            "hard_limit_seconds": hard_limit_seconds,
            "consumer_timeouts": None
            if management is None
            else [asdict(timeout) for timeout in timeouts],
        }
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        lines = _timeout_lines(timeouts, hard_limit_seconds, asked=management is not None)
        print_view(_view(address, found, lines))
    return good


def _request_queues(engines: Sequence[str]) -> list[QueueSpec]:
    try:
        return [requests_queue(engine) for engine in dict.fromkeys(engines)]
    except ValueError as error:
        raise InputError(f"--engine: {error}") from None


def _view(
    address: BrokerAddress, found: Sequence[Finding], timeouts: Sequence[str]
) -> RenderableType:
    table = Table(title=f"topology of {address}", title_justify="left")
    for heading in ("", "name", "is", ""):
        table.add_column(heading)
    for finding in found:
        said = _MEANING.get(finding.standing, finding.detail)
        table.add_row(finding.kind, finding.name, finding.standing, Text(said))
    return Group(table, *map(Text, timeouts))


def _timeout_lines(
    timeouts: Sequence[ConsumerTimeout], hard_limit_seconds: float, *, asked: bool
) -> list[str]:
    needed = (
        f"{hard_limit_seconds + HOLD_MARGIN_SECONDS:g} s, as evaluations of up to"
        f" {hard_limit_seconds:g} s need"
    )
    if not asked:
        told = f"the broker's consumer_timeout, which must be at least {needed}"
        return [f"not checked: {told}; --management URL looks it up"]
    lines = []
    for timeout in timeouts:
        if timeout.seconds is None:
            told = (
                "no policy and no argument sets it; that of the node's own configuration, which"
                f" cannot be looked up, must be at least {needed}"
            )
        else:
            verdict = "at least" if timeout.allows(hard_limit_seconds) else "LESS than"
            told = f"{timeout.seconds:g} s by {timeout.set_by}, {verdict} {needed}"
        lines.append(f"{timeout.queue}: consumer timeout: {told}")
    return lines

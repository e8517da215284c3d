"""The page for operators names options and figures that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from spica_async.bus import address, limits, topology
from spica_async.bus.rabbitmq.bus import DEFAULT_CONNECT_SECONDS, DEFAULT_PATIENCE_SECONDS
from spica_async.cli.app import app
from spica_async.cli.worker import app as worker_app
from workers import settings, traces

PAGE = (Path(__file__).parents[3] / "docs" / "operations.md").read_text(encoding="utf-8")
OTHERS_COMMANDS = re.compile(
    r"^(rabbitmqctl|docker|echo) .*$|`(rabbitmqctl|docker) [^`]*`", re.MULTILINE
)


def options_of_programs() -> set[str]:
    found = {"--help"}
    commands = [get_command(app), get_command(worker_app)]
    while commands:
        command = commands.pop()
        found.update(option for parameter in command.params for option in parameter.opts)
        commands += getattr(command, "commands", {}).values()
    return found


def test_every_option_on_the_page_exists() -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", OTHERS_COMMANDS.sub("", PAGE)))

    assert {"--bus", "--slots", "--engine"} <= named
    assert named <= options_of_programs()


@pytest.mark.parametrize(
    ("line", "value", "unit"),
    [
        ("requests of a sweep in flight", 16, ""),
        ("heartbeat of connections", address.DEFAULT_HEARTBEAT_SECONDS, " s"),
        ("heartbeat of workers", settings.DEFAULT_HEARTBEAT_SECONDS, " s"),
        ("hard limit of an evaluation", limits.DEFAULT_HARD_LIMIT_SECONDS, " s"),
        ("delivery limit", topology.DELIVERY_LIMIT, ""),
        ("trace cache of a worker", traces.DEFAULT_MAX_BYTES / 2**30, " GiB"),
    ],
)
def test_the_defaults_are_those_of_the_code(line: str, value: float, unit: str) -> None:
    (default,) = re.findall(rf"^\| {line} \| ([^|]*) \|", PAGE, re.MULTILINE)

    assert re.search(rf"(^|\D){value:g}{unit}\b", default), default


def test_the_times_are_those_of_the_code() -> None:
    margin, fetch = limits.HOLD_MARGIN_SECONDS, limits.DEFAULT_FETCH_SECONDS
    assert f"plus {margin:g} s: {fetch:g} s, which" in PAGE
    assert margin == fetch + 60
    assert f"after {DEFAULT_CONNECT_SECONDS:g} s" in PAGE
    assert "after ten minutes it ends" in PAGE
    assert DEFAULT_PATIENCE_SECONDS == 10 * 60
    assert "expires after a day" in PAGE
    assert topology.RESULTS_EXPIRE_SECONDS == 24 * 60 * 60
    # Both together must end before RabbitMQ takes the request away.
    assert limits.DEFAULT_HARD_LIMIT_SECONDS + margin <= 1800
    assert "| 1800 s |" in PAGE


def test_the_variables_are_those_of_the_code() -> None:
    known = {
        "SPICA_BUS",
        address.USER_VARIABLE,
        address.PASSWORD_VARIABLE,
        address.PASSWORD_FILE_VARIABLE,
        "SPICA_SWEEP",  # of compose.yaml
    }
    assert set(re.findall(r"SPICA_[A-Z_]+", PAGE)) == known


def test_the_names_on_the_broker_are_those_of_the_code() -> None:
    for name in (
        topology.requests_queue("X").name.replace("X", "<fingerprint>"),
        topology.results_queue("X").name.replace("X", "<sweep>"),
        topology.DEAD_QUEUE.name,
        topology.EVENTS_EXCHANGE,
        topology.CONTROL_EXCHANGE,
    ):
        assert re.search(rf"^\| `{re.escape(name)}` \|", PAGE, re.MULTILINE)

"""What is shown of the workers and of the broker while a sweep runs."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console

from schemas.goal import OptimizationGoal, OptimizationTarget
from spica_async.evaluate.fleet import FleetView, WorkerView
from spica_async.report.screen import LiveDisplay, PlainDisplay, showing

GOAL = OptimizationGoal(target=OptimizationTarget.THROUGHPUT)
NOBODY = FleetView(waiting_for="no worker with engine 1a2b is connected")
ONE = FleetView((WorkerView("a", "ready", slots=4, busy=1),))
TWO = FleetView((*ONE.workers, WorkerView("b", "ready", slots=4, busy=4)))


class Clock:
    """Stands in for the display's clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("spica_async.report.screen.time.monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def screen() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def plain(clock: Clock, screen: io.StringIO) -> Callable[..., PlainDisplay]:
    return lambda *, fleet: PlainDisplay(GOAL, Console(file=screen, width=200), fleet=fleet)


def printed(screen: io.StringIO) -> list[str]:
    return [line.removeprefix("[0.0 s] ") for line in screen.getvalue().splitlines()]


def test_a_log_names_workers_that_come_and_go_and_not_of_each_heartbeat(
    plain: Callable[..., PlainDisplay], screen: io.StringIO
) -> None:
    display = plain(fleet=True)
    busier = replace(ONE, workers=(replace(ONE.workers[0], busy=4),))
    for view in (NOBODY, ONE, busier, ONE, TWO, NOBODY):
        display.fleet(view)
    assert printed(screen) == [
        "workers: 0, slots 0",
        "waiting: no worker with engine 1a2b is connected",
        "workers: 1, slots 4",
        "workers: 2, slots 8",
        "workers: 0, slots 0",
        "waiting: no worker with engine 1a2b is connected",
    ]


def test_a_companion_worker_is_shown_when_something_is_wrong_with_it(
    plain: Callable[..., PlainDisplay], screen: io.StringIO
) -> None:
    display = plain(fleet=False)
    for view in (ONE, replace(ONE, troubles=("a: no memory",)), ONE):
        display.fleet(view)
    assert printed(screen) == ["trouble: a: no memory"]


def test_a_log_names_each_change_of_the_broker(
    plain: Callable[..., PlainDisplay], screen: io.StringIO
) -> None:
    display = plain(fleet=True)
    for state, why in (
        ("connected", ""),
        ("connecting", "refused"),
        ("connecting", "timed out"),
        ("connected", ""),
        ("blocked", "memory alarm"),
    ):
        display.bus(state, why)
    assert printed(screen) == [
        "broker: unreachable (refused); trying again",
        "broker: connected",
        "broker: does not take messages (memory alarm); waiting",
    ]


def shown(display: LiveDisplay) -> list[str]:
    console = Console(file=io.StringIO(), width=100, record=True)
    console.print(display.render())
    return [line.strip() for line in console.export_text().splitlines()][1:]


def test_a_terminal_shows_who_works_and_what_is_wrong_below_the_rest(clock: Clock) -> None:
    display = LiveDisplay(GOAL, Console(file=io.StringIO()), fleet=True)
    assert shown(display) == []
    display.fleet(TWO)
    assert shown(display) == ["workers: 2, slots 8, busy 5", "a 1/4, b 4/4"]
    display.fleet(NOBODY)
    display.bus("connecting", "refused")
    clock.now += 7.0
    display.bus("connecting", "timed out")
    clock.now += 5.0
    assert shown(display) == [
        "workers: 0, slots 0, busy 0",
        "waiting: no worker with engine 1a2b is connected",
        "broker: unreachable since 12.0 s (timed out); trying again",
    ]
    display.bus("connected", "")
    display.fleet(ONE)
    assert shown(display) == ["workers: 1, slots 4, busy 1"]


def test_a_terminal_says_nothing_of_a_companion_worker_that_is_well() -> None:
    display = LiveDisplay(GOAL, Console(file=io.StringIO()), fleet=False)
    display.fleet(ONE)
    assert shown(display) == []
    display.fleet(replace(ONE, troubles=("a: no memory",)))
    assert shown(display) == ["trouble: a: no memory"]


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("fleet", [True, False])
def test_both_displays_show_the_workers_where_they_should(
    screen: io.StringIO, *, terminal: bool, fleet: bool
) -> None:
    console = Console(file=screen, force_terminal=terminal)
    with showing(GOAL, console, fleet=fleet) as display:
        assert isinstance(display, LiveDisplay if terminal else PlainDisplay)
        display.fleet(ONE)
        lines = shown(display) if isinstance(display, LiveDisplay) else printed(screen)
    assert bool(lines) is fleet

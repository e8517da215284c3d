"""A slot with real children, most of which misbehave."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from structlog.testing import capture_logs

from schemas.messages import EvaluationRequest, Measurement
from spica_async.processes.groups import live_members
from workers.port import ChildDeaths, ChildStartError
from workers.settings import ChildSettings
from workers.slot import Slot, SlotState

PLENTY = 2**40
MakeRequest = Callable[..., EvaluationRequest]
Running = Callable[[], list[int]]
Marked = Callable[[str], list[str]]
Until = Callable[[Callable[[], Any]], Awaitable[Any]]


@asynccontextmanager
async def opened(settings: ChildSettings, memory_limit_bytes: int = PLENTY) -> AsyncIterator[Slot]:
    slot = Slot(0, settings, memory_limit_bytes)
    try:
        yield slot
    finally:
        await slot.close()
        assert slot.state is SlotState.EMPTY


@pytest.fixture
async def slot(settings: ChildSettings) -> AsyncIterator[Slot]:
    async with opened(settings) as slot:
        yield slot


class Outcome(NamedTuple):
    measurement: Measurement
    child_deaths: int


async def evaluate(slot: Slot, request: EvaluationRequest, deaths_before: int = 0) -> Outcome:
    deaths = ChildDeaths(deaths_before)
    return Outcome(await slot.evaluate(request, deaths), deaths.count)


def verdict(outcome: Outcome) -> tuple[str, str | None, int]:
    measurement = outcome.measurement
    return measurement.outcome, measurement.cause, outcome.child_deaths


def pid_in(outcome: Outcome) -> int:
    assert outcome.measurement.report is not None, outcome
    return int(outcome.measurement.report["pid"])


class TestEvaluating:
    async def test_one_warm_child_serves_many(self, slot: Slot, request_to: MakeRequest) -> None:
        await slot.start()
        warm = slot.child_pid
        first = await evaluate(slot, request_to("succeed"))
        second = await evaluate(slot, request_to("succeed"))
        assert verdict(first) == ("feasible", None, 0)
        assert pid_in(first) == pid_in(second) == warm != os.getpid()
        assert slot.state is SlotState.IDLE
        assert slot.statistics.child_starts == 1
        assert slot.statistics.evaluations == 2

    async def test_the_child_stands_apart(
        self,
        slot: Slot,
        request_to: MakeRequest,
        marks: Path,
        marked: Marked,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("SPICA_BUS", "amqp://user:secret@broker")
        monkeypatch.setenv("SPICA_BUS_PASSWORD", "secret")
        report = (await evaluate(slot, request_to("tell_surroundings"))).measurement.report
        assert report is not None
        assert report["session"] == report["group"] == report["pid"]
        assert (marks / "error-error-1").exists()
        assert marked("secret-*") == []

    async def test_the_warm_up_comes_before_the_first_request(
        self,
        settings: ChildSettings,
        request_to: MakeRequest,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("WARM_UP_MARK", str(tmp_path / "warm"))
        async with opened(replace(settings, warm_up="fake_evaluators:warm_up")) as slot:
            await slot.start()
            assert (tmp_path / "warm").exists()
            assert verdict(await evaluate(slot, request_to("succeed"))) == ("feasible", None, 0)

    async def test_a_failing_evaluator_costs_no_child(
        self, slot: Slot, request_to: MakeRequest
    ) -> None:
        for do, detail in {
            "fail": "ValueError: the shape is wrong",
            "panic": "PanicError: unwrap on None",
            "return_nonsense": "returned dict, not a Measurement",
            "return_too_much": "bytes, more than",
        }.items():
            outcome = await evaluate(slot, request_to(do))
            assert verdict(outcome) == ("failed", "replay_error", 0)
            assert detail in str(outcome.measurement.detail)
        assert verdict(await evaluate(slot, request_to("succeed"))) == ("feasible", None, 0)
        assert slot.statistics.child_starts == 1

    async def test_garbage_on_stdout_goes_to_the_log(
        self, slot: Slot, request_to: MakeRequest, tmp_path: Path
    ) -> None:
        assert verdict(await evaluate(slot, request_to("chatter"))) == ("feasible", None, 0)
        logged = (tmp_path / "slot-0.log").read_text()
        assert "garbage on stdout" in logged
        assert "garbage from a program" in logged

    async def test_garbage_needs_no_log(
        self, settings: ChildSettings, request_to: MakeRequest, capfd: pytest.CaptureFixture[str]
    ) -> None:
        async with opened(replace(settings, log_folder=None)) as slot:
            assert verdict(await evaluate(slot, request_to("chatter"))) == ("feasible", None, 0)
        assert capfd.readouterr() == ("", "")

    async def test_an_interrupt_does_not_reach_the_evaluation(
        self, slot: Slot, request_to: MakeRequest, until: Until, marked: Marked, marks: Path
    ) -> None:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(evaluate(slot, request_to("wait_for", mark="go")))
            await until(lambda: marked("run-*"))
            assert slot.child_pid is not None
            os.killpg(slot.child_pid, signal.SIGINT)
            (marks / "go").touch()
        assert verdict(running.result()) == ("feasible", None, 0)


class TestDeaths:
    @pytest.mark.parametrize(
        ("do", "why"),
        [
            ("segfault", "ended by SIGSEGV"),
            ("break_channel", "not a measurement"),
            ("exit_with_fork", "exited with status 7"),
        ],
    )
    async def test_three_deaths_end_the_evaluation(
        self, slot: Slot, request_to: MakeRequest, marked: Marked, do: str, why: str
    ) -> None:
        outcome = await evaluate(slot, request_to(do))
        assert verdict(outcome) == ("failed", "child_died", 3)
        assert why in str(outcome.measurement.detail)
        assert len(marked("run-*")) == 3
        assert slot.statistics.child_deaths == 3
        assert slot.statistics.child_starts == 3
        assert slot.state is SlotState.EMPTY

    async def test_a_closed_channel_is_a_death_although_the_child_lives(
        self, slot: Slot, request_to: MakeRequest
    ) -> None:
        outcome = await evaluate(slot, request_to("close_channel"), deaths_before=2)
        assert verdict(outcome) == ("failed", "child_died", 3)
        assert "closed its channel" in str(outcome.measurement.detail)

    async def test_the_third_child_may_succeed(self, slot: Slot, request_to: MakeRequest) -> None:
        outcome = await evaluate(slot, request_to("exit_twice"))
        assert verdict(outcome) == ("feasible", None, 2)
        assert slot.statistics.child_deaths == 2

    async def test_deaths_before_count(
        self, slot: Slot, request_to: MakeRequest, marked: Marked
    ) -> None:
        outcome = await evaluate(slot, request_to("segfault"), deaths_before=1)
        assert verdict(outcome) == ("failed", "child_died", 3)
        assert len(marked("run-*")) == 2

    async def test_deaths_are_known_when_there_is_no_next_child(
        self,
        settings: ChildSettings,
        request_to: MakeRequest,
        marks: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("WARM_UP_MARK", str(marks / "warm"))
        scarce = replace(settings, warm_up="fake_evaluators:succeed_once", start_attempts=1)
        deaths = ChildDeaths()
        async with opened(scarce) as slot:
            with pytest.raises(ChildStartError):
                await slot.evaluate(request_to("exit_at_once"), deaths)
        assert deaths.count == 1

    async def test_a_death_while_idle_is_no_evaluations_fault(
        self, slot: Slot, request_to: MakeRequest, until: Until
    ) -> None:
        first = await evaluate(slot, request_to("succeed"))
        os.kill(pid_in(first), signal.SIGKILL)
        await until(lambda: not slot.is_warm)
        second = await evaluate(slot, request_to("succeed"))
        assert verdict(second) == ("feasible", None, 0)
        assert pid_in(second) != pid_in(first)
        assert slot.statistics.child_deaths == 1


class TestLimits:
    async def test_the_whole_group_is_ended_even_if_it_ignores_term(
        self, slot: Slot, request_to: MakeRequest, marked: Marked
    ) -> None:
        outcome = await evaluate(slot, request_to("hang_with_grandchild", max_eval_seconds=1.0))
        assert verdict(outcome) == ("failed", "time_limit", 0)
        assert len(marked("grandchild-*")) == 1
        assert len(marked("run-*")) == 1
        assert slot.state is SlotState.EMPTY
        assert verdict(await evaluate(slot, request_to("succeed"))) == ("feasible", None, 0)
        assert slot.statistics.child_deaths == 0

    async def test_the_childs_start_does_not_count(
        self, settings: ChildSettings, request_to: MakeRequest
    ) -> None:
        # Importing takes 1.5 s.
        async with opened(replace(settings, evaluator="slow_evaluator:evaluate")) as slot:
            outcome = await evaluate(slot, request_to("-", max_eval_seconds=1.4))
        assert verdict(outcome) == ("feasible", None, 0)

    async def test_what_a_child_sets_up_for_a_request_does_not_count(
        self, settings: ChildSettings, request_to: MakeRequest, marked: Marked
    ) -> None:
        async with opened(replace(settings, warm_up="fake_evaluators:slow_set_up")) as slot:
            for _ in range(2):
                outcome = await evaluate(slot, request_to("succeed", max_eval_seconds=0.9))
                assert verdict(outcome) == ("feasible", None, 0)
            # A child that is ended for its time is followed by one that is as cold.
            late = request_to("sleep", seconds=30, max_eval_seconds=0.3)
            assert (await evaluate(slot, late)).measurement.cause == "time_limit"
            outcome = await evaluate(slot, request_to("succeed", max_eval_seconds=0.9))
            assert verdict(outcome) == ("feasible", None, 0)
        assert len(marked("set-up-*")) == 2

    async def test_a_set_up_that_takes_too_long_is_a_death_and_no_limit_of_time(
        self, settings: ChildSettings, request_to: MakeRequest, marked: Marked
    ) -> None:
        # Enough for the start of a child that imports little.
        hanging = replace(settings, warm_up="fake_evaluators:hanging_set_up", start_seconds=3.0)
        async with opened(hanging) as slot:
            request = request_to("succeed", max_eval_seconds=0.1)
            outcome = await evaluate(slot, request, deaths_before=2)
        assert verdict(outcome) == ("failed", "child_died", 3)
        assert "not set up for the request after 3 s" in str(outcome.measurement.detail)
        assert len(marked("set-up-*")) == 1

    async def test_a_set_up_that_fails_leaves_the_answer_to_the_evaluation(
        self, settings: ChildSettings, request_to: MakeRequest
    ) -> None:
        async with opened(replace(settings, warm_up="fake_evaluators:broken_set_up")) as slot:
            assert verdict(await evaluate(slot, request_to("succeed"))) == ("feasible", None, 0)

    async def test_memory_is_looked_at_during_set_up(
        self, settings: ChildSettings, request_to: MakeRequest
    ) -> None:
        greedy = replace(settings, warm_up="fake_evaluators:hanging_set_up")
        async with opened(greedy, memory_limit_bytes=1) as slot:
            outcome = await evaluate(slot, request_to("succeed"))
        assert verdict(outcome) == ("failed", "resource_limited", 0)

    async def test_all_attempts_count_together(self, slot: Slot, request_to: MakeRequest) -> None:
        request = request_to("sleep_and_exit", seconds=0.5, max_eval_seconds=1.2)
        outcome = await evaluate(slot, request)
        assert outcome.measurement.cause == "time_limit"

    @pytest.mark.parametrize("do", ["allocate", "allocate_in_grandchild"])
    async def test_too_much_memory_ends_the_child_for_good(
        self, settings: ChildSettings, request_to: MakeRequest, marked: Marked, do: str
    ) -> None:
        async with opened(settings, memory_limit_bytes=250 * 2**20) as slot:
            # The child itself stays below the limit.
            assert verdict(await evaluate(slot, request_to("succeed"))) == ("feasible", None, 0)
            outcome = await evaluate(slot, request_to(do, bytes=300 * 2**20))
        assert verdict(outcome) == ("failed", "resource_limited", 0)
        assert "250 MiB allowed" in str(outcome.measurement.detail)
        assert len(marked("run-e2-*")) == 1


class TestStarting:
    @pytest.mark.parametrize(
        ("evaluator", "warm_up", "why"),
        [
            ("no_such_module:evaluate", None, "ModuleNotFoundError: No module named"),
            ("fake_evaluators:no_such_name", None, "AttributeError"),
            ("fake_evaluators:evaluate", "fake_evaluators:broken_warm_up", "no performance data"),
            ("fake_evaluators:evaluate", "fake_evaluators:deadly_warm_up", "status 9"),
        ],
    )
    async def test_a_failed_start_is_told(
        self, settings: ChildSettings, evaluator: str, warm_up: str | None, why: str
    ) -> None:
        broken = replace(settings, evaluator=evaluator, warm_up=warm_up, start_attempts=1)
        async with opened(broken) as slot:
            with pytest.raises(ChildStartError, match=why):
                await slot.start()
            assert slot.statistics.child_starts == 0

    async def test_a_start_is_tried_again_so_many_times(
        self, settings: ChildSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("WARM_UP_MARK", str(tmp_path / "starts"))
        failing = replace(settings, warm_up="fake_evaluators:fail_once", start_attempts=2)
        async with opened(failing) as slot:
            with capture_logs() as logs:
                await slot.start()
            assert [entry["event"] for entry in logs] == ["worker.child_start_failed"]
            assert slot.statistics.child_starts == 1
            assert slot.statistics.child_deaths == 0

    async def test_a_start_is_bounded_in_time(self, settings: ChildSettings) -> None:
        hanging = replace(
            settings, warm_up="fake_evaluators:hanging_warm_up", start_seconds=0.5, start_attempts=1
        )
        async with opened(hanging) as slot:
            with pytest.raises(ChildStartError, match=r"no request taken 0\.5 s"):
                await slot.start()

    async def test_a_cancelled_start_leaves_nothing(
        self, settings: ChildSettings, until: Until, running: Running
    ) -> None:
        hanging = replace(settings, warm_up="fake_evaluators:hanging_warm_up")
        async with opened(hanging) as slot:
            starting = asyncio.ensure_future(slot.start())
            await until(running)
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
            await slot.close()
            assert running() == []


class TestEnding:
    async def test_an_end_in_good_order_leaves_nothing_and_can_be_followed_by_a_start(
        self, slot: Slot, request_to: MakeRequest, until: Until, marked: Marked, running: Running
    ) -> None:
        evaluation = asyncio.ensure_future(evaluate(slot, request_to("hang_with_grandchild")))
        await until(lambda: marked("grandchild-*"))
        evaluation.cancel()
        with pytest.raises(asyncio.CancelledError):
            await evaluation
        warm = [slot.is_warm]
        await slot.end()
        assert running() == []
        await slot.start()
        warm.append(slot.is_warm)
        assert warm == [False, True]
        assert verdict(await evaluate(slot, request_to("succeed"))) == ("feasible", None, 0)

    async def test_a_cancelled_evaluation_can_be_closed(
        self, slot: Slot, request_to: MakeRequest, until: Until, marked: Marked, running: Running
    ) -> None:
        evaluation = asyncio.ensure_future(evaluate(slot, request_to("hang_with_grandchild")))
        await until(lambda: marked("grandchild-*"))
        evaluation.cancel()
        with pytest.raises(asyncio.CancelledError):
            await evaluation
        slot.kill()
        await slot.close()
        assert running() == []

    async def test_children_go_when_their_supervisor_is_killed(
        self, settings: ChildSettings, request_to: MakeRequest, until: Until, marked: Marked
    ) -> None:
        supervisor = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", KILLED_SUPERVISOR),
            *(settings.evaluator, *settings.import_paths),
            request_to("hang_with_grandchild").model_dump_json(),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        try:
            await until(lambda: marked("grandchild-*"))
        finally:
            supervisor.kill()
            await supervisor.wait()
        [run], [grandchild] = marked("run-*"), marked("grandchild-*")
        await until(lambda: not any(live_members(int(run.split("-")[-1]))))
        assert await until(lambda: _gone(int(grandchild.split("-")[-1])))


def _gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


KILLED_SUPERVISOR = f"""
import asyncio, sys
from schemas.messages import EvaluationRequest, Measurement
from workers.port import ChildDeaths
from workers.settings import ChildSettings
from workers.slot import Slot

settings = ChildSettings(sys.argv[1], warm_up=None, import_paths=(sys.argv[2],))
request = EvaluationRequest.model_validate_json(sys.argv[3])
asyncio.run(Slot(0, settings, {PLENTY}).evaluate(request, ChildDeaths()))
"""

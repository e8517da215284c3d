"""The sampler's proxy with designers that answer at once, or not as they should."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import structlog

from schemas.config import OptimizerSettings
from spica_async.optimizer.assignments import centre
from spica_async.optimizer.channel import DesignerChannel
from spica_async.optimizer.port import Sampler
from spica_async.optimizer.process import SamplerProcess
from spica_async.optimizer.profiles import open_sampler, seed_count
from spica_async.optimizer.quasi_random import draw
from spica_async.optimizer.types import Objective, Study, Suggestion, Trial
from spica_async.optimizer.wire import AskRequest
from spica_async.space.parameters import DiscreteParameter, FloatParameter

STUDY = Study(
    "agg",
    7,
    (FloatParameter("x", 0.0, 1.0), DiscreteParameter("n", (1, 2, 4), log=True)),
    (Objective("throughput", maximize=True), Objective("latency", maximize=False)),
)


@pytest.fixture(autouse=True)
def _designers_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def sampler_with(designer: str, timeout: float = 60.0, **options: Any) -> SamplerProcess:
    """A sampler that asks its process from the first trial on, unless told otherwise."""
    return SamplerProcess(
        STUDY,
        suggest_timeout_seconds=timeout,
        designer=f"misbehaving:{designer}",
        **{"seeds": 0, **options},
    )


def measured(suggestion: Suggestion) -> Trial:
    return Trial(suggestion.number, suggestion.assignment, {"throughput": 10.0, "latency": 3.0})


def failed(suggestion: Suggestion) -> Trial:
    return Trial(suggestion.number, suggestion.assignment, None)


def pid_in(path: Path) -> int:
    while not path.exists():
        time.sleep(0.01)
    return int(path.read_text())


def assert_gone(pid: int) -> None:
    """A killed process may stay a zombie for a moment when it is not ours to reap."""
    try:
        psutil.Process(pid).wait(timeout=30)
    except psutil.NoSuchProcess:
        return


async def test_numbers_count_up_and_the_history_goes_along() -> None:
    async with sampler_with("Honest") as sampler:
        port: Sampler = sampler
        first = await port.ask(3)
        await port.observe([measured(first[2]), failed(first[0])])
        second = await port.ask(2)
        await port.observe([measured(first[1]), *map(measured, second)])
        (third,) = await port.ask(1)
    assert [s.number for s in [*first, *second, third]] == [0, 1, 2, 3, 4, 5]
    assert [s.assignment["x"] for s in (first[0], second[1], third)] == pytest.approx(
        [0.0, 0.003 + 2e-6 + 1e-9, 0.005 + 5e-6], abs=1e-12
    )
    assert all(s.stand_in is None for s in [*first, *second, third])
    stats = sampler.stats
    assert (stats.asks, stats.suggestions, stats.stand_ins, stats.restarts) == (3, 6, 0, 0)
    assert stats.suggest_seconds > 0


async def test_asks_made_at_once_take_turns() -> None:
    async with sampler_with("Honest") as sampler, asyncio.TaskGroup() as group:
        asks = [group.create_task(sampler.ask(2)) for _ in range(3)]
    assert sorted(s.number for ask in asks for s in ask.result()) == list(range(6))


async def test_output_of_libraries_reaches_neither_the_terminal_nor_the_answers(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async with sampler_with("Noisy") as sampler:
        (suggestion,) = await sampler.ask(1)
    assert suggestion.stand_in is None
    assert capfd.readouterr() == ("", "")


async def test_output_of_libraries_is_appended_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "sampler.log"
    log.write_text("from before\n")
    async with sampler_with("Noisy", log_path=log) as sampler:
        await sampler.ask(1)
    assert log.read_text() == (
        "from before\na warning from some library\nand one from native codemore of it\n"
    )


async def test_the_process_is_set_apart() -> None:
    async with sampler_with("Environment") as sampler:
        (suggestion,) = await sampler.ask(1)
    assert suggestion.stand_in == (
        "the optimizer raised RuntimeError: sigint ignored: True, leads its group: True, "
        "platform: cpu, stdin: b''"
    )


FAULTS = [
    ("Raise", "the optimizer raised ZeroDivisionError: no covariance left"),
    ("RefuseToBuild", "the optimizer raised RuntimeError: no such kernel"),
    ("NoSuchName", "has no attribute 'NoSuchName'"),
    ("Exit", "the optimizer process exited with status 7"),
    ("Killed", "the optimizer process was ended by SIGKILL"),
    ("Garbage", "wrote garbage"),
    ("FramedGarbage", "wrote garbage"),
    ("FramedNonsense", "wrote garbage"),
    ("NotANumber", "parameter 'x' cannot be nan"),
    ("OutOfRange", "parameter 'x' cannot be 1.5"),
    ("Unlisted", "parameter 'n' cannot be 3"),
    ("Missing", "missing parameters: n"),
    ("TooFew", "asked for 2 suggestions, got 1"),
    ("NoMapping", "suggested 0.5"),
]


@pytest.mark.parametrize(("designer", "reason"), FAULTS)
async def test_a_fault_is_answered_by_draws_and_a_new_process(designer: str, reason: str) -> None:
    with structlog.testing.capture_logs() as logs:
        async with sampler_with(designer) as sampler:
            old = sampler.pid
            suggestions = await sampler.ask(2)
            new = sampler.pid
    assert [s.number for s in suggestions] == [0, 1]
    assert [s.assignment for s in suggestions] == [draw(STUDY, 0), draw(STUDY, 1)]
    assert all(s.stand_in is not None and reason in s.stand_in for s in suggestions)
    assert old is not None
    assert new not in {None, old}
    assert_gone(old)
    stats = sampler.stats
    assert (stats.asks, stats.suggestions, stats.stand_ins, stats.restarts) == (1, 2, 2, 1)
    (entry,) = logs
    assert entry["event"] == "quasi_random_stand_in"
    assert entry["log_level"] == "warning"
    assert (entry["branch"], entry["first"], entry["count"]) == ("agg", 0, 2)
    assert entry["reason"] == suggestions[0].stand_in


async def test_what_was_told_is_told_again_after_a_fault() -> None:
    async with sampler_with("HangLater") as sampler:
        first = await sampler.ask(2)
        await sampler.observe([measured(first[0])])
        sampler._timeout = 0.2
        sampler._designer = "misbehaving:Honest"
        (late,) = await sampler.ask(1)
        assert late.stand_in == "no answer within 0.2 s"
        assert late.assignment == draw(STUDY, 2)
        sampler._timeout = 60.0
        (after,) = await sampler.ask(1)
    assert after.stand_in is None
    assert after.assignment["x"] == pytest.approx(0.003 + 1e-6 + 2e-9, abs=1e-12)


async def test_repeated_faults_cost_one_process_each() -> None:
    async with sampler_with("Exit") as sampler:
        drawn = [await sampler.ask(1) for _ in range(3)]
    assert [s.assignment for (s,) in drawn] == [draw(STUDY, n) for n in range(3)]
    assert (sampler.stats.stand_ins, sampler.stats.restarts) == (3, 3)


async def test_a_process_that_cannot_start_again_does_not_end_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with sampler_with("Raise") as sampler:
        executable = sys.executable
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        first = await sampler.ask(1)
        assert sampler.pid is None
        second = await sampler.ask(1)
        assert second[0].stand_in is not None
        assert "cannot start" in second[0].stand_in
        monkeypatch.setattr(sys, "executable", executable)
        third = await sampler.ask(1)
        assert third[0].stand_in == first[0].stand_in
        assert sampler.pid is not None


async def test_a_process_that_cannot_start_at_all_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(FileNotFoundError):
        async with sampler_with("Honest"):
            pass


async def test_cancelling_an_ask_kills_process_and_helpers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HELPER_PID", str(tmp_path / "pid"))
    async with sampler_with("HangWithHelper") as sampler:
        pid = sampler.pid
        assert pid is not None
        ask = asyncio.ensure_future(sampler.ask(1))
        helper = await asyncio.to_thread(pid_in, tmp_path / "pid")
        ask.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ask
        assert sampler.pid is None
        assert not psutil.pid_exists(pid)
        assert_gone(helper)
        # The number was not used up, and another process serves the next ask.
        sampler._designer = "misbehaving:Honest"
        (suggestion,) = await sampler.ask(1)
        assert (suggestion.number, suggestion.stand_in) == (0, None)
    assert (sampler.stats.asks, sampler.stats.restarts) == (1, 1)


async def test_leaving_kills_a_process_that_is_busy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HELPER_PID", str(tmp_path / "pid"))
    sampler = sampler_with("HangWithHelper")
    pids: list[int | None] = []

    async def leave_while_busy() -> None:
        async with sampler, asyncio.TaskGroup() as group:
            pids.append(sampler.pid)
            group.create_task(sampler.ask(1))
            pids.append(await asyncio.to_thread(pid_in, tmp_path / "pid"))
            raise InterruptedError

    with pytest.raises(ExceptionGroup) as caught:
        await leave_while_busy()
    assert caught.group_contains(InterruptedError)
    optimizer, helper = pids
    assert optimizer is not None
    assert not psutil.pid_exists(optimizer)
    assert helper is not None
    assert_gone(helper)


async def test_ctrl_c_is_not_for_the_process() -> None:
    async with sampler_with("Honest") as sampler:
        await sampler.ask(1)
        assert sampler.pid is not None
        os.killpg(sampler.pid, signal.SIGINT)
        (suggestion,) = await sampler.ask(1)
    assert suggestion.stand_in is None


def test_the_process_does_not_outlive_its_parent(tmp_path: Path) -> None:
    program = f"""
import asyncio, sys
sys.path[:0] = [{str(Path(__file__).parent)!r}]
from spica_async.optimizer.process import SamplerProcess
from spica_async.optimizer.types import Objective, Study
from spica_async.space.parameters import FloatParameter

async def main():
    study = Study("agg", 7, (FloatParameter("x", 0.0, 1.0),), (Objective("y", True),))
    async with SamplerProcess(study, designer="misbehaving:HangWithHelper", seeds=0) as sampler:
        print(sampler.pid, flush=True)
        await sampler.ask(1)

asyncio.run(main())
"""
    pid_file = tmp_path / "pid"
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        env=os.environ | {"HELPER_PID": str(pid_file)},
    )
    assert parent.stdout is not None
    with parent, parent.stdout:
        optimizer = int(parent.stdout.readline())
        helper = pid_in(pid_file)
        parent.kill()
    assert_gone(optimizer)
    assert_gone(helper)


async def test_asking_outside_the_context_or_for_nothing_is_a_mistake() -> None:
    sampler = sampler_with("Honest")
    with pytest.raises(RuntimeError, match="inside the sampler's context"):
        await sampler.ask(1)
    with pytest.raises(ValueError, match="cannot suggest 0 trials"):
        await sampler.ask(0)


async def test_a_wrong_observation_is_refused_and_none_of_it_taken_in() -> None:
    async with sampler_with("Honest") as sampler:
        a, b = await sampler.ask(2)
        other = {**b.assignment, "n": 4}
        for trials, complaint in (
            ([measured(a), Trial(2, a.assignment, None)], "trial 2 answers no pending suggestion"),
            ([measured(a), measured(a)], "observed twice"),
            ([measured(a), Trial(1, other, None)], "trial 1 is not what was suggested"),
            ([measured(a), Trial(1, b.assignment, {"throughput": 1.0})], "latency"),
            (
                [measured(a), Trial(1, b.assignment, {"throughput": 1.0, "latency": float("inf")})],
                "not finite",
            ),
        ):
            with pytest.raises(ValueError, match=complaint):
                await sampler.observe(trials)
        await sampler.observe([measured(a), measured(b)])
        with pytest.raises(ValueError, match="trial 0 answers no pending suggestion"):
            await sampler.observe([measured(a)])


async def test_the_first_trials_need_no_answer_of_the_process() -> None:
    async with sampler_with("Hang", seeds=8) as sampler:
        suggestions = [*await sampler.ask(1), *await sampler.ask(7)]
    assert suggestions == [
        Suggestion(0, centre(STUDY.parameters)),
        *(Suggestion(number, draw(STUDY, number)) for number in range(1, 8)),
    ]
    assert (sampler.stats.asks, sampler.stats.stand_ins) == (2, 0)


async def asked_process(sampler: SamplerProcess) -> bool:
    """Whether the process answers the next ask: it then encodes in `x` what it was told."""
    (suggestion,) = await sampler.ask(1)
    return suggestion.assignment != draw(STUDY, suggestion.number)


async def test_placed_trials_are_among_the_seeds() -> None:
    async with sampler_with("Honest", seeds=6) as sampler:
        (first,) = await sampler.ask(1)
        placed = await sampler.place([{"x": i / 4, "n": 1} for i in range(3)])
        assert [suggestion.number for suggestion in placed] == [1, 2, 3]
        await sampler.observe([measured(first), *map(measured, placed[:2]), failed(placed[2])])
        assert not await asked_process(sampler)
        assert not await asked_process(sampler)
        (suggestion,) = await sampler.ask(1)
    # Ask 6, with 4 told and 2 pending.
    assert suggestion.assignment["x"] == pytest.approx(0.006 + 4e-6 + 2e-9, abs=1e-12)


async def test_an_ask_across_the_last_seed_asks_the_process_for_the_rest() -> None:
    async with sampler_with("Honest", seeds=6) as sampler:
        first = await sampler.ask(4)
        await sampler.observe([measured(first[0])])
        mixed = await sampler.ask(5)
        assert [suggestion.number for suggestion in mixed] == [4, 5, 6, 7, 8]
        assert mixed[:2] == [Suggestion(number, draw(STUDY, number)) for number in (4, 5)]
        # Ask 6, with 1 told and 3 + 2 pending.
        codes = [suggestion.assignment["x"] for suggestion in mixed[2:]]
        assert codes == pytest.approx([0.006 + 1e-6 + 5e-9] * 3, abs=1e-12)
        assert await asked_process(sampler)


@pytest.mark.parametrize(("parameters", "seeds"), [(1, 8), (4, 8), (5, 10), (8, 16), (30, 16)])
def test_a_larger_space_takes_more_seeds(parameters: int, seeds: int) -> None:
    floats = tuple(FloatParameter(f"x{number}", 0.0, 1.0) for number in range(parameters))
    study = replace(STUDY, parameters=floats)
    assert seed_count(study, "fast") == seeds
    assert seed_count(study, "vizier_default") == 1


async def test_a_model_needs_one_told_trial_at_least() -> None:
    async with sampler_with("Honest", seeds=8) as sampler:
        suggestions = await sampler.ask(16)
        assert not await asked_process(sampler)
        await sampler.observe([failed(suggestions[9])])
        assert await asked_process(sampler)


async def test_a_placed_trial_that_the_study_does_not_allow_is_refused() -> None:
    async with sampler_with("Honest") as sampler:
        with pytest.raises(ValueError, match="'n' cannot be 3"):
            await sampler.place([{"x": 0.5, "n": 1}, {"x": 0.5, "n": 3}])
        (suggestion,) = await sampler.ask(1)
    assert suggestion.number == 0


async def test_costs_are_added_up() -> None:
    async with sampler_with("Compiling") as sampler:
        await sampler.ask(1)
        stats = sampler.stats
        started = stats.start_seconds
        assert started > 0
        assert stats.compile_seconds == pytest.approx(0.5)
        assert stats.compile_wait_seconds == pytest.approx(0.5)
        channel = sampler._channel
        assert channel is not None
        # What is compiled while nobody asks is waited for by nobody.
        channel.prepare(AskRequest(1, 1, (), ()))
        await until_prepared(channel)
        await sampler.ask(1)
        assert stats.compile_seconds == pytest.approx(11.0)
        assert stats.compile_wait_seconds == pytest.approx(1.0)
        assert stats.start_seconds == started
        # Another process counts from its own start.
        await sampler._discard()
        await sampler.ask(1)
    assert stats.compile_seconds == pytest.approx(11.5)
    assert stats.compile_wait_seconds == pytest.approx(1.5)
    assert stats.start_seconds > started


async def test_an_ask_interrupts_what_is_compiled_ahead() -> None:
    async with sampler_with("Interruptible") as sampler:
        (first,) = await sampler.ask(1)
        assert first.assignment["n"] == 1
        # An ask that comes before it has begun to prepare finds nothing to interrupt.
        for _ in range(100):
            await asyncio.sleep(0.05)
            (suggestion,) = await sampler.ask(1)
            if suggestion.assignment["n"] == 4:
                break
        else:
            raise AssertionError("it was never interrupted")


async def until_prepared(channel: DesignerChannel | None) -> None:
    """Waits for a successor, and leaves its message to be read again."""
    assert channel is not None
    while not await channel.is_prepared():  # noqa: ASYNC110  # There is nothing to wait for.
        await asyncio.sleep(0.01)

    async def still_prepared() -> bool:
        return True

    channel.is_prepared = still_prepared  # type: ignore[method-assign]  # For this one channel.


async def test_a_process_that_grew_too_large_is_replaced_unnoticed() -> None:
    # Python alone needs more than 1 MiB, and less than the part of 10,000 that is put up with.
    async with sampler_with("Honest", max_memory_mb=1) as sampler:
        sampler._max_memory = 10_000.0
        await sampler.ask(1)
        unneeded = sampler._successor
        assert unneeded is None
        large = sampler.pid
        assert large is not None
        sampler._max_memory = 1.0
        await sampler.ask(1)
        successor = sampler._successor
        assert successor is not None
        assert sampler.pid == large
        sampler._max_memory = 10_000.0
        await until_prepared(successor)
        (suggestion,) = await sampler.ask(1)
        assert sampler.pid == successor.pid != large
        assert not psutil.pid_exists(large)
    assert suggestion.stand_in is None
    assert suggestion.assignment["x"] == pytest.approx(0.002 + 2e-9, abs=1e-12)
    assert (sampler.stats.recycled, sampler.stats.restarts) == (1, 0)


async def test_a_large_process_goes_on_until_its_successor_is_prepared() -> None:
    async with sampler_with("SlowSuccessor", max_memory_mb=1) as sampler:
        await sampler.ask(1)
        large = sampler.pid
        successor = sampler._successor
        assert successor is not None
        sampler._max_memory = 10_000.0
        await sampler.ask(1)
        assert sampler.pid == large
        # Now it is too large to wait any longer.
        sampler._max_memory = 1.0
        (suggestion,) = await sampler.ask(1)
        assert sampler.pid == successor.pid
    assert suggestion.stand_in is None
    assert sampler.stats.recycled == 1
    assert not psutil.pid_exists(successor.pid)


async def test_a_successor_that_fails_is_given_up() -> None:
    with structlog.testing.capture_logs() as logs:
        async with sampler_with("BadSuccessor", max_memory_mb=1) as sampler:
            await sampler.ask(1)
            large = sampler.pid
            successor = sampler._successor
            assert successor is not None
            sampler._max_memory = 10_000.0
            while not logs:
                (suggestion,) = await sampler.ask(1)
                assert suggestion.stand_in is None
            assert sampler.pid == large
            assert sampler._successor is None
    assert (sampler.stats.recycled, sampler.stats.restarts) == (0, 0)
    assert [entry["event"] for entry in logs] == ["optimizer_successor_failed"]


async def test_leaving_kills_a_successor_too() -> None:
    async with sampler_with("Honest", max_memory_mb=1) as sampler:
        await sampler.ask(1)
        assert sampler._successor is not None
        pids = [sampler.pid, sampler._successor.pid]
    assert not any(psutil.pid_exists(pid) for pid in pids if pid is not None)


@pytest.mark.parametrize(("profile", "seeds"), [("fast", 8), ("vizier_default", 1)])
async def test_a_profile_chooses_designer_and_seeds(profile: Any, seeds: int) -> None:
    settings = OptimizerSettings(profile=profile, max_memory_mb=700)
    async with open_sampler(STUDY, settings, suggest_timeout_seconds=9.0) as sampler:
        assert isinstance(sampler, SamplerProcess)
        assert (sampler._seeds, sampler._max_memory, sampler._timeout) == (seeds, 700, 9.0)
        suggestions = await sampler.ask(seeds)
    assert suggestions[0].assignment == centre(STUDY.parameters)
    assert sampler.stats.stand_ins == 0


async def test_a_process_that_grows_in_the_middle_of_an_ask_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = 300 * 2**20
    monkeypatch.setattr("spica_async.optimizer.process.child_memory_limit", lambda: limit)
    async with sampler_with("Grow", max_memory_mb=1) as sampler:
        (suggestion,) = await sampler.ask(1)
    assert suggestion.stand_in is not None
    assert re.fullmatch(
        r"the optimizer process took \d{3} MiB of memory, 300 MiB allowed", suggestion.stand_in
    )

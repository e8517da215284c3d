"""Real children with evaluators that misbehave, and a watch over what they leave behind."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import JsonValue

from schemas.messages import EvaluationRequest, SyntheticLoad
from workers.settings import ChildSettings

MakeRequest = Callable[..., EvaluationRequest]


@pytest.fixture
def settings(tmp_path: Path) -> ChildSettings:
    return ChildSettings(
        evaluator="fake_evaluators:evaluate",
        warm_up=None,
        import_paths=(str(Path(__file__).parent / "evaluators"),),
        log_folder=tmp_path,
        restart_pause_seconds=0.01,
        term_grace_seconds=0.2,
        memory_sample_seconds=0.05,
    )


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """The folder in which evaluators leave marks."""
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder


@pytest.fixture
def request_to(marks: Path) -> MakeRequest:
    """Makes a request to an evaluator that does what it is told."""
    numbers = count(1)

    def make(
        do: str, *, max_eval_seconds: float | None = None, **sample: JsonValue
    ) -> EvaluationRequest:
        return EvaluationRequest(
            evaluation_id=f"e{next(numbers)}",
            sweep_id="sweep",
            sample={"do": do, "folder": str(marks), **sample},
            load=SyntheticLoad(isl=100, osl=10, requests=4, concurrency=2),
            max_eval_seconds=max_eval_seconds,
        )

    return make


@pytest.fixture
def marked(marks: Path) -> Callable[[str], list[str]]:
    """Lists the marks that match a pattern."""
    return lambda pattern: sorted(mark.name for mark in marks.glob(pattern))


@pytest.fixture
def until() -> Callable[[Callable[[], Any]], Awaitable[Any]]:
    """Waits until a condition holds, and returns what made it true."""

    async def wait(condition: Callable[[], Any]) -> Any:
        async with asyncio.timeout(60):
            while not (result := condition()):  # noqa: ASYNC110 - other processes set no events
                await asyncio.sleep(0.01)
        return result

    return wait


@pytest.fixture
def running() -> Callable[[], list[int]]:
    """Lists the children of this process that have come with the test and have not ended."""
    before = {child.pid for child in psutil.Process().children()}
    return lambda: [
        child.pid
        for child in psutil.Process().children()
        if child.pid not in before and _runs(child.pid)
    ]


@pytest.fixture(autouse=True)
def nothing_is_left(
    running: Callable[[], list[int]], marked: Callable[[str], list[str]]
) -> Iterator[None]:
    """No child survives a test, nor what it started and marked."""
    yield
    marked_pids = [int(name.removeprefix("grandchild-")) for name in marked("grandchild-*")]
    left = [*running(), *(pid for pid in marked_pids if _runs(pid))]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

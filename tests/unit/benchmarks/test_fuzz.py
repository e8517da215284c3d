"""Some cases of the fuzz; `make fuzz` tries ten thousand of each kind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from fuzzing import harness, traces
from fuzzing.harness import Finding, case_random, run_kind
from fuzzing.messages import opened
from support.engine_samples import agg

from spica_async.engine.evaluation import replay, replay_arguments
from spica_async.errors import InputError

HERE = Path(__file__).parent
FUZZ = HERE.parents[2] / "benchmarks" / "fuzz.py"


def found(kind: str, seed: int, count: int) -> list[Finding]:
    findings: list[Finding] = []
    tally = run_kind(kind, seed, range(count), per_child=count, report=findings.append)
    assert tally.cases == count
    assert sum(tally.outcomes.values()) == count - len(findings)
    return findings


def test_a_message_is_handled_or_counted() -> None:
    assert found("messages", 1, 60) == []


def test_a_document_is_read_or_refused_in_lines_that_name_the_place() -> None:
    assert found("documents", 1, 60) == []


def test_a_trace_is_read_or_refused_in_one_line() -> None:
    with traces.opened(trace_windows=lambda _path, _seconds: ["a window"]) as subject:
        outcomes = Counter(
            subject.try_one(subject.make(case_random("traces", 1, case))) for case in range(50)
        )
    assert min(outcomes["sound"], outcomes["refused"]) > 5


@pytest.mark.slow
def test_the_engine_reads_of_a_trace_what_its_check_has_counted() -> None:
    arguments = replay_arguments(agg(), None)
    replayed = 0
    with traces.opened(trace_windows=lambda _path, _seconds: ["a window"]) as subject:
        for case in range(120):
            try:
                load = subject.read(subject.make(case_random("traces", 1, case))).trace
            except InputError:
                continue
            if load is None or load.requests > 200 or load.total_tokens > 500_000:
                continue
            report = replay(load, arguments)
            tokens = report["total_input_tokens"] + report["total_output_tokens"]
            assert (report["completed_requests"], tokens) == (load.requests, load.total_tokens)
            replayed += 1
    assert replayed > 20


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "count"), [("traces", 1000), ("models", 300)])
def test_what_the_engine_reads_is_planned_or_refused_in_one_line(kind: str, count: int) -> None:
    assert found(kind, 1, count) == []


@pytest.mark.slow
def test_the_memory_of_its_parent_does_not_count() -> None:
    much = bytearray(1200 * 2**20)
    much[::4096] = b"x" * len(much[::4096])
    assert found("messages", 1, 2) == []


def test_a_seed_and_a_number_give_a_case_again() -> None:
    with opened() as messages:
        once, again, other = (messages.make(case_random("messages", seed, 7)) for seed in (1, 1, 2))
    assert once == again
    assert once != other


class Misbehaving:
    """Cases that end as none may, each in its own way."""

    def make(self, rng: object) -> str:
        self._made = getattr(self, "_made", -1) + 1
        return ("fine", "raises", "computes", "panics", "takes memory")[self._made]

    def try_one(self, case: str) -> str:
        match case:
            case "raises":
                raise ValueError("as no reader may")
            case "computes":
                while True:
                    pass
            case "panics":
                raise BaseException  # noqa: TRY002  # as native code does
            case "takes memory":
                assert b"x" * harness.MEMORY_BYTES
        return "fine"


def test_what_goes_wrong_is_found() -> None:
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]; from contextlib import contextmanager;"
        "from fuzzing import harness; from test_fuzz import Misbehaving;"
        "harness.CPU_SECONDS, harness.MEMORY_BYTES = 1.0, 2**28;"
        "harness.run_child('x', contextmanager(lambda: iter([Misbehaving()])), 1, range(5), 1)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, FUZZ.parent, HERE, HERE.parents[1]],
        check=True,
        stdout=subprocess.PIPE,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    findings = [line["finding"][:2] for line in lines if "finding" in line]
    assert [case for case, _ in findings] == [1, 2, 3, 4]
    assert [what.split(" ")[0] for _, what in findings] == [
        "ValueError",
        "OverTime",
        "BaseException",
        "memory",
    ]
    assert lines[-1]["cases"] == 5
    assert lines[-1]["outcomes"] == {"fine": 2}

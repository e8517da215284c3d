"""What the benchmark against the rival makes of what it sees."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from side_by_side import ours, rival
from side_by_side.contest import CONTESTS, rounds_for
from side_by_side.outcome import Outcome, Parts
from side_by_side.process_tree import Sightings, Span
from side_by_side.quality import Found, front, highest, hypervolume, seconds_to, shortest
from side_by_side.recording import LineWatch, Recording, UnreadableRunError, record
from side_by_side.table import goals

from schemas.config import SmartSearchConfig
from schemas.results import SweepTimings

THROUGHPUT, PARETO, ROUTER = (CONTESTS[name] for name in ("throughput", "pareto", "router"))


def found(seconds: float, *objectives: float, label: str = "vllm agg 1 x tp 1") -> Found:
    return Found(seconds, objectives, label)


def test_the_best_of_one_objective_is_the_highest_or_the_shortest() -> None:
    candidates = [found(1, 20), found(2, 50), found(3, 40)]
    assert highest(candidates) == 50
    assert ROUTER.shown(shortest(candidates)) == 20


def test_the_hypervolume_is_the_area_below_the_front() -> None:
    candidates = [found(1, 1, 5), found(2, 2, 2), found(3, 1, 1)]
    assert hypervolume(candidates) == 1 * 5 + 1 * 2
    assert front(candidates) == candidates[:2]


def test_a_level_is_reached_by_the_first_candidate_that_brings_it_in_order_of_time() -> None:
    candidates = [found(9, 3), found(2, 1), found(5, 3), found(7, 2)]
    assert seconds_to(2.5, candidates, highest) == 5
    assert seconds_to(3.5, candidates, highest) is None


def test_a_hypervolume_is_reached_by_several_candidates_together() -> None:
    candidates = [found(1, 1, 5), found(2, 2, 2)]
    assert seconds_to(5.5, candidates, hypervolume) == 2


@given(st.integers(4, 500))
def test_rounds_leave_over_less_than_four_of_the_budget(budget: int) -> None:
    rounds, per_round = rounds_for(budget, "rounds")
    assert 4 <= per_round <= 8
    assert budget - 3 <= rounds * per_round <= budget


@pytest.mark.parametrize(
    ("budget", "expected"),
    [(16, (2, 8)), (24, (3, 8)), (17, (2, 8)), (13, (2, 6)), (9, (2, 4)), (3, (1, 3))],
)
def test_rounds_hold_as_much_of_the_budget_as_they_can(
    budget: int, expected: tuple[int, int]
) -> None:
    assert rounds_for(budget, "rounds") == expected


def test_without_barriers_the_budget_is_met_exactly() -> None:
    assert rounds_for(13, "continuous") == (1, 13)


@pytest.mark.parametrize("name", CONTESTS)
def test_the_committed_configurations_are_ours_and_a_mapping(name: str) -> None:
    folder = Path(ours.__file__).parent / "sweeps"
    text = (folder / f"{name}.ours.yaml").read_text()
    config = SmartSearchConfig.model_validate(yaml.safe_load(text))
    assert tuple(config.goal.objectives) == CONTESTS[name].objectives
    assert len(config.search_space.deployment_mode) == CONTESTS[name].branches
    assert isinstance(yaml.safe_load((folder / f"{name}.rival.yaml").read_text()), dict)


def span(command: str, *sightings: tuple[float, float], pid: int = 1) -> Span:
    made = Span(pid, command)
    for seconds, cpu_seconds in sightings:
        made.saw(seconds, cpu_seconds)
    return made


def test_cpu_time_is_spread_evenly_between_two_sightings() -> None:
    seen = span("", (2, 0.5), (4, 1.5), (5, 1.5))
    assert [seen.cpu_at(at) for at in (1, 2, 3, 4.5, 9)] == [0, 0.5, 1.0, 1.5, 1.5]
    assert (seen.began, seen.ended, seen.cpu_total) == (2, 5, 1.5)


def test_a_process_that_rests_is_remembered_by_where_its_rest_begins_and_ends() -> None:
    seen = span("", (0, 1), (1, 1), (2, 1), (3, 1), (4, 2))
    assert seen.seconds == [0, 3, 4]
    assert seen.cpu_at(3) == 1


def test_lines_are_timed_as_they_come(tmp_path: Path) -> None:
    watch = LineWatch(tmp_path, "*/lines")
    watch.look(1)
    (tmp_path / "made-later").mkdir()
    path = tmp_path / "made-later" / "lines"
    path.write_text("one\ntwo\nhal")
    watch.look(2)
    watch.look(3)
    with path.open("a") as file:
        file.write("f\n")
    watch.look(4)
    watch.close()
    assert watch.seconds == [2, 2, 4]


_PROGRAM = """
import subprocess, sys, time
if len(sys.argv) > 1:
    time.sleep(0.5)
else:
    subprocess.run([sys.executable, __file__, "as-child"], check=True)
    with open("lines", "w") as file:
        file.write("one\\ntwo\\n")
    while time.process_time() < 0.3:
        pass
    sys.exit(3)
"""


def test_a_program_is_recorded_with_its_children(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(_PROGRAM)
    core = min(os.sched_getaffinity(0))
    recording = record(
        [sys.executable, "program.py"], core=core, folder=tmp_path, watched="lines", environ={}
    )
    recording.save(tmp_path / "recording.json")
    loaded = Recording.load(tmp_path / "recording.json")
    assert loaded == recording
    assert loaded.exit_code == 3
    assert loaded.cpu_seconds >= 0.3
    assert len(loaded.line_seconds) == 2
    assert any("as-child" in one.command for one in loaded.sightings.spans)
    assert loaded.sightings.peak_memory_bytes > 1e6
    with pytest.raises(UnreadableRunError, match="exit code 3"):
        loaded.check(tmp_path)


def recording(*spans: Span, cpu_seconds: float, lines: tuple[float, ...] = ()) -> Recording:
    return Recording(
        exit_code=0,
        wall_seconds=100.0,
        cpu_seconds=cpu_seconds,
        others_share=0.0,
        line_seconds=list(lines),
        sightings=Sightings(list(spans), 10**9),
    )


_SHAPE = {
    "deployment_mode": "agg",
    "backend": "vllm",
    "strategy": "tp",
    "attention_dp": 1,
    "replicas": 1,
}


def rival_candidate(tp: int, tokens: float, *, status: str = "feasible") -> dict[str, Any]:
    metrics = {"output_throughput_tok_s": tokens, "wall_time_ms": 1000.0}
    return {
        "status": status,
        "config": {**_SHAPE, "tp": tp},
        "used_gpus": tp,
        "metrics": metrics if status == "feasible" else None,
    }


def rival_folder(
    folder: Path, candidates: list[dict[str, Any]], *, processes: int | None = None
) -> Path:
    """What the rival leaves of candidates whose processes run from 20 s on, 5 s each."""
    (folder / "out").mkdir(parents=True)
    events: list[dict[str, Any]] = [{"event": "requested_config", "value": {}}]
    events += [{"event": "candidate_completed", "value": one} for one in candidates]
    lines = "".join(json.dumps(event) + "\n" for event in events)
    (folder / "out" / "execution-events.jsonl").write_text(lines)
    (folder / "sweep.yaml").write_text("optimizer: {max_trials: 9}")
    began = [20 + 10 * number for number in range(processes or len(candidates))]
    workers = [
        span("python -c from multiprocessing.spawn import", (at, 0.0), (at + 5, 4.0))
        for at in began
    ]
    recording(
        span("aisimulate recommend", (0, 0), (100, 2)),
        span("python -m aisimulate.resource_worker cli", (0, 0), (20, 8), (100, 38)),
        span("python -c from multiprocessing.resource_tracker", (0, 0), (100, 0)),
        *workers,
        cpu_seconds=40 + 4 * len(workers),
    ).save(folder / "recording.json")
    return folder


def test_the_rivals_candidates_are_timed_by_their_processes(tmp_path: Path) -> None:
    candidates = [rival_candidate(1, 1000), rival_candidate(2, 0, status="failed")]
    outcome = rival.read(THROUGHPUT, rival_folder(tmp_path, [*candidates, candidates[0]]))
    assert outcome.found == [found(25, 1000), found(45, 1000)]
    assert outcome.evaluated == 2
    assert outcome.suggestions == 9
    assert outcome.busy_share == pytest.approx(15 / 25)
    # A second of five, by the clock, is a second of five of the CPU time: 0.8.
    assert outcome.parts.replays == pytest.approx(2 * 0.8)
    assert outcome.parts.optimizer == 30
    assert outcome.parts.starts == pytest.approx(8 + 3 * 4 - 2 * 0.8)
    assert outcome.parts.rest == pytest.approx(2)


def test_processes_without_a_candidate_are_noticed(tmp_path: Path) -> None:
    folder = rival_folder(tmp_path, [rival_candidate(1, 1000)], processes=2)
    with pytest.raises(UnreadableRunError, match="2 processes for 1 candidates"):
        rival.read(THROUGHPUT, folder)


def timings(**values: float) -> SweepTimings:
    names = SweepTimings.model_fields
    return SweepTimings(**{**dict.fromkeys(names, 0.0), **values})


def test_the_optimizers_cpu_time_is_split_as_its_time_was() -> None:
    # 40 s: 10 of starts, 15 of asks, 5 of them compiling, and 15 of compiling ahead of asks.
    measured = timings(optimizer_starts=10, compiling=20, compile_waits=5, optimizer=15)
    assert ours.sampler_once(20.0, measured) == (5.0, 10.0)
    assert ours.sampler_once(60.0, measured) == (10.0, 20.0)


def test_an_optimizer_without_an_answer_only_started() -> None:
    assert ours.sampler_once(3.0, timings()) == (3.0, 0.0)


def outcome(
    best: float, *, wall: float = 20.0, optimizer: float = 0.5, label: str = "vllm agg 1 x tp 1"
) -> Outcome:
    """A run of 16 candidates with 10 s of replays and 8 s that are paid once."""
    return Outcome(
        recording=replace(recording(cpu_seconds=wall), wall_seconds=wall),
        found=[found(1, best, label=label)],
        evaluated=16,
        suggestions=20,
        busy_share=0.9,
        parts=Parts(starts=5, compiling=3, planning=0, optimizer=optimizer, replays=10, rest=0),
    )


_RIVAL = outcome(1000, wall=160)


def missed(ours: Outcome) -> list[str]:
    return [goal.wording for goal in goals(THROUGHPUT, _RIVAL, ours) if not goal.met]


def test_a_run_that_is_fast_and_good_enough_meets_every_goal() -> None:
    assert missed(outcome(1000)) == []


@pytest.mark.parametrize(
    ("run", "goal"),
    [
        (outcome(999), "the same best"),
        (outcome(1000, wall=20.5), "wall at most"),
        (replace(outcome(1000), parts=replace(_RIVAL.parts, replays=9)), "wall without starts"),
        (outcome(1000, optimizer=1.5), "optimizer below"),
        (outcome(1000, label="vllm agg 1 x tp 2"), "best is"),
        (replace(outcome(1000), evaluated=17), "no more candidates"),
    ],
)
def test_each_goal_can_be_missed_alone(run: Outcome, goal: str) -> None:
    (wording,) = missed(run)
    assert wording.startswith(goal)

"""The result of a sweep that has found nothing, for tests of what is done with one."""

from __future__ import annotations

from schemas.results import SweepResult, SweepTimings, Tally

RESULT = SweepResult(
    reason="it is done",
    sweep_id="sweep",
    status="nothing_feasible",
    ranking=[],
    tally=Tally(),
    timings=SweepTimings(
        total=2.0,
        planning=1.0,
        search=1.0,
        optimizer=0.0,
        compiling=0.0,
        compile_waits=0.0,
        optimizer_starts=0.0,
        evaluations=0.0,
    ),
    branches=[],
    results_dir="results/sweep",
    seed=1,
    versions={},
)

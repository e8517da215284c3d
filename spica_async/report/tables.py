"""What the terminal shows of a finished sweep, and of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from schemas.goal import OptimizationGoal, OptimizationTarget, SLATarget
from schemas.messages import Sample
from schemas.results import Gain, RankedCandidate, SweepResult, Tally
from spica_async.judge.scoring import average_gpus, dominates
from spica_async.plan.describe import describe_parameter, describe_seed
from spica_async.plan.types import SweepPlan, dropped_lines
from spica_async.report.accuracy import accuracy_lines
from spica_async.report.deployment_text import (
    deployment,
    differing_knobs,
    settings,
    traffic_handling,
)
from spica_async.report.units import TARGET_UNITS, figure, margin, seconds
from spica_async.space.sample import is_noisy

_SHOWN = 10
_PIPE_WIDTH = 200
_SHOWN_MISSES = 3
_SAME_GPUS = 0.05
_MEAN_OF_LEVEL = {
    "ttft_ms": "mean_ttft_ms",
    "itl_ms": "mean_itl_ms",
    "e2e_ms": "mean_e2e_latency_ms",
}


def result_view(result: SweepResult, goal: OptimizationGoal) -> RenderableType:
    """The ten best or the whole front, the tallies, and where the time went."""
    shown = result.ranking if goal.is_pareto else result.ranking[:_SHOWN]
    parts: list[RenderableType] = []
    if result.status == "nothing_feasible":
        parts.append(_nothing_feasible(result, goal))
    elif shown:
        parts += [
            candidates_table(shown, goal, of=len(result.ranking), baseline=result.baseline),
            *_warnings(shown),
            *_against_baseline(result, goal),
        ]
    parts += [_tally(result), _timings(result)]
    parts += map(Text, accuracy_lines(result.accuracy or ()))
    parts.append(Text(f"results in {result.results_dir}"))
    return Group(*parts)


def plan_view(plan: SweepPlan) -> RenderableType:
    """Branches, pools, parameters, and what is left out and why."""
    parts: list[RenderableType] = []
    for branch in plan.branches:
        by_backend = ", ".join(
            f"{backend} {branch.pool.count(backend)}" for backend in branch.pool.backends
        )
        title = f"{branch.mode}: {len(branch.pool)} parallel configurations ({by_backend})"
        table = Table("parameter", "values", title=title, title_justify="left")
        for parameter in branch.parameters:
            table.add_row(parameter.name, describe_parameter(parameter))
        for knob in (branch.backend, *branch.knobs):
            if len(knob.entries) == 1:
                table.add_row(knob.name, f"{knob.entries[0]} (pinned)", style="dim")
        count = branch.distinct_selections
        parts += [
            table,
            Text(f"distinct samples: {'unbounded' if count is None else f'{count:,}'}"),
        ]
        if seeds := plan.seeds.get(branch.mode):
            parts.append(
                Text(f"tried first: the middle, then {'; '.join(map(describe_seed, seeds))}")
            )
    if plan.baseline is not None:
        parts.append(Text(f"baseline: {describe_seed(plan.baseline)}"))
    for interval, entry in plan.predictors.best_by_interval.items():
        parts.append(Text(f"load predictor every {interval} s: {entry}"))
    parts += [Text(f"warning: {warning}") for warning in plan.warnings]
    if plan.dropped:
        parts.append(Text("left out:"))
        parts += [Text(f"  {line}") for line in dropped_lines(plan.dropped)]
    return Group(*parts)


def candidates_table(
    shown: Sequence[RankedCandidate],
    goal: OptimizationGoal,
    *,
    of: int,
    baseline: RankedCandidate | None = None,
) -> RenderableType:
    """A row for each candidate: its objectives, its figures, and what sets it apart.

    Args:
        shown: the best candidates, or the front.
        goal: what makes them better than others.
        of: how many candidates they are the best of.
        baseline: what they are held against, for a row of its own below theirs.
    """
    title = "Pareto front" if goal.is_pareto else f"best {len(shown)} of {of}"
    rows = [*shown, *([] if baseline is None else [baseline])]
    described = _differences([candidate.config for candidate in rows])
    units = [TARGET_UNITS[target] for target in goal.objectives]
    gained = [
        f"{unit}, against the baseline" if goal.is_pareto else "against the baseline"
        for unit, target in zip(units, goal.objectives, strict=True)
        if any(target in candidate.gains for candidate in shown)
    ]
    repeated = ["replays"] if any(candidate.replicates > 1 for candidate in rows) else []
    loads = list(dict.fromkeys(load for candidate in shown for load in candidate.loads))
    worst = [f"worst at {', '.join(loads)} x load"] if loads else []
    figures = ["rank", *units, *gained, *repeated, *worst, "GPUs", "TTFT ms", "ITL ms", "tok/s"]
    table = Table(
        *(Column(name, justify="right") for name in figures),
        "deployment",
        *described,
        title=title,
        title_justify="left",
    )
    for index, candidate in enumerate(rows):
        metrics, is_baseline = candidate.metrics, candidate is baseline
        table.add_row(
            "baseline" if is_baseline else str(candidate.group or index + 1),
            *(objective(candidate, target) for target in goal.objectives),
            *(
                gain_text(candidate.gains.get(target))
                for target in goal.objectives
                if any(target in one.gains for one in shown)
            ),
            *(str(candidate.replicates) for _ in repeated),
            *(_worst(candidate) for _ in worst),
            _gpus(candidate),
            figure(metrics.get("mean_ttft_ms")),
            figure(metrics.get("mean_itl_ms")),
            figure(metrics.get("output_throughput_tok_s")),
            deployment(candidate.config),
            *(texts[index] for texts in described.values()),
            style="dim" if is_baseline else None,
        )
    return table


def gain_text(gain: Gain | None) -> str:
    """How much better than the baseline, e.g. `+48.0 ± 2.1 %`; a dash where nobody knows."""
    if gain is None:
        return "-"
    whole, off = 100 + gain.percent, gain.margin or 0.0
    half = margin(whole - off, whole + off)
    return f"{gain.percent:+.1f}{f' ± {half}' if half else ''} %"


def _against_baseline(result: SweepResult, goal: OptimizationGoal) -> list[RenderableType]:
    """Where the baseline lies, and what makes the table say less of it than it seems to."""
    if result.baseline is None:
        problem = result.baseline_problem
        return [] if problem is None else [Text(f"warning: there is no baseline: {problem}")]
    lines = []
    if goal.is_pareto:
        count = sum(
            dominates(one.objectives, result.baseline.objectives, goal.objectives)
            for one in result.ranking
        )
        where = f"behind {count} of the front" if count else "on the front, or before it"
        lines.append(f"the baseline lies {where}")
    elif (best := result.ranking[0].gain) is not None and best.percent <= (best.margin or 0.0):
        lines.append("warning: nothing is better than the baseline, or not by more than the noise")
    if is_noisy(result.baseline.config) and result.baseline.replicates == 1:
        lines.append("warning: the baseline was measured once, and its replays differ")
    return [Text(line) for line in lines]


def objective(candidate: RankedCandidate, target: OptimizationTarget) -> str:
    """Its mean, and half of the interval if that has a width."""
    mean = candidate.objectives[target.value]
    low, high = candidate.intervals.get(target.value, (mean, mean))
    half = margin(low, high)
    return f"{figure(mean)} ± {half}" if half else figure(mean)


def _worst(candidate: RankedCandidate) -> str:
    """The lowest score under any load, unsigned; it is marked where that loses much."""
    if candidate.worst is None:
        return "-"
    return f"{figure(abs(candidate.worst))}{' !' if candidate.is_fragile else ''}"


def _warnings(shown: Sequence[RankedCandidate]) -> list[RenderableType]:
    lines = []
    if any(candidate.is_fragile for candidate in shown):
        lines.append("!: at another load it loses more than a quarter against the best there")
    if shown and is_noisy(shown[0].config) and shown[0].replicates == 1:
        lines.append("warning: the first one was measured once, and its replays differ")
    return [Text(line) for line in lines]


def _gpus(candidate: RankedCandidate) -> str:
    """GPUs of a static deployment; of one that a planner scaled, their average over time."""
    average = average_gpus(candidate.metrics)
    if abs(average - candidate.used_gpus) < _SAME_GPUS:
        return str(candidate.used_gpus)
    return f"{average:.1f} from {candidate.used_gpus}"


def _differences(samples: Sequence[Sample]) -> dict[str, list[str]]:
    """Further columns by heading, for what is not the same in every row."""
    differing = differing_knobs(samples)
    columns = {
        "router, planner": [traffic_handling(sample) for sample in samples],
        "settings that differ": [settings(sample, differing) for sample in samples],
    }
    return {heading: texts for heading, texts in columns.items() if len(set(texts)) > 1}


def _nothing_feasible(result: SweepResult, goal: OptimizationGoal) -> RenderableType:
    if not result.ranking:
        lines = ["nothing feasible was found"]
        lines += [f"  {count} x {cause}" for cause, count in result.tally.causes.items()]
        lines += [f"  {branch.branch}: {branch.reason}" for branch in result.branches]
        return Text("\n".join(lines))
    sla = goal.sla or SLATarget()
    levels = {name: value for name, value in sla.model_dump().items() if value is not None}
    wanted = ", ".join(f"{name} {figure(value)}" for name, value in levels.items())
    lines = [f"no request of any candidate met the SLA ({wanted}); the nearest misses, by means:"]
    for candidate in sorted(result.ranking, key=lambda c: _miss(c, levels))[:_SHOWN_MISSES]:
        means = ", ".join(
            f"{name} {figure(candidate.metrics.get(_MEAN_OF_LEVEL[name]))}" for name in levels
        )
        lines.append(f"  {deployment(candidate.config)}: {means}")
    return Text("\n".join(lines))


def _miss(candidate: RankedCandidate, levels: dict[str, float]) -> float:
    """How far the worst mean is over its level, as a factor."""
    return max(
        candidate.metrics.get(_MEAN_OF_LEVEL[name], float("inf")) / level
        for name, level in levels.items()
    )


def _tally(result: SweepResult) -> Text:
    tally = result.tally
    ends = "; ".join(f"{branch.branch} {branch.end}: {branch.reason}" for branch in result.branches)
    lines = [f"{result.status}: {tally_text(tally)}", ends]
    # Where the branches' own reasons do not say it.
    if result.status in ("converged", "time_limit") and result.reason not in ends:
        lines.insert(1, result.reason)
    if tally.reused:
        lines.append(f"{tally.reused} of these were measured before (--no-cache does it again)")
    if tally.replicates:
        lines.append(f"{tally.replicates} replays besides, to know the best better")
    if tally.resent_requests or tally.late_results:
        lines.append(
            "on the way to workers and back: "
            + _counted(
                (
                    (tally.resent_requests, "lost requests sent again"),
                    (tally.late_results, "results too late and dropped"),
                )
            )
        )
    return Text("\n".join(lines))


def tally_text(tally: Tally) -> str:
    """Suggestions by what became of them, in one line."""
    counted = _counted(
        (
            (tally.feasible, "feasible"),
            (tally.infeasible, "infeasible"),
            (tally.unsupported, "unsupported"),
            (tally.failed, "failed"),
            (tally.cached, "duplicates"),
            (tally.stand_ins, "quasi-random stand-ins"),
        )
    )
    return f"{counted} of {tally.attempts} suggestions"


def _timings(result: SweepResult) -> Text:
    timings = result.timings
    return Text(
        f"took {seconds(timings.total)}: planning {seconds(timings.planning)}, "
        f"search {seconds(timings.search)} "
        f"(optimizer {seconds(timings.optimizer)}, evaluations {seconds(timings.evaluations)} "
        "over all slots)"
    )


def _counted(counts: Iterable[tuple[int, str]]) -> str:
    return ", ".join(f"{count} {name}" for count, name in counts if count) or "nothing"


def print_view(view: RenderableType) -> None:
    """Print a view to stdout; a pipe gets wide lines rather than wrapped cells."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPE_WIDTH)
    console.print(view)

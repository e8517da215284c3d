"""What one deployment comes to, metric by metric."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from schemas.goal import OptimizationGoal
from schemas.results import RankedCandidate
from spica_async.report.deployment_text import deployment, traffic_handling
from spica_async.report.tables import objective
from spica_async.report.units import TARGET_UNITS, figure, margin


def prediction_view(entry: RankedCandidate, goal: OptimizationGoal) -> RenderableType:
    """The deployment, its objectives, and each metric with half of its 95 % interval."""
    times = "1 replay" if entry.replicates == 1 else f"{entry.replicates} replays"
    table = Table("metric", Column("mean", justify="right"), Column("±", justify="right"))
    for name, mean in sorted(entry.metrics.items()):
        low, high = entry.metric_intervals.get(name, (mean, mean))
        table.add_row(name, figure(mean), margin(low, high))
    objectives = [
        f"{objective(entry, target)} {TARGET_UNITS[target]}" for target in goal.objectives
    ]
    return Group(
        Text(f"{deployment(entry.config)}, {traffic_handling(entry.config)}: {times}"),
        Text(", ".join(objectives)),
        table,
    )

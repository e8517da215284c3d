"""Two deployments side by side: their knobs, their metrics, and what of it clears the noise."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from schemas.results import RankedCandidate
from spica_async.judge.comparing import Comparison
from spica_async.report.deployment_text import deployment, traffic_handling
from spica_async.report.units import figure

_NOISE = {True: "yes", False: "no", None: "unknown"}


def comparison_view(
    one: RankedCandidate, other: RankedCandidate, comparison: Comparison, notes: Sequence[str]
) -> RenderableType:
    """What differs, and below it each metric of both.

    Args:
        one: the first deployment.
        other: the second.
        comparison: of the two.
        notes: what makes them hard to compare.
    """
    knobs = Table("knob", "A", "B")
    for name, values in comparison.knobs.items():
        knobs.add_row(name, *("-" if value is None else str(value) for value in values))
    metrics = Table(
        "metric",
        *(Column(name, justify="right") for name in ("A", "B", "B against A")),
        "clears the noise",
    )
    for metric in comparison.metrics:
        if metric.one == metric.other:
            continue
        change = "" if metric.change is None else f"{metric.change:+.1%}"
        metrics.add_row(
            metric.name,
            figure(metric.one),
            figure(metric.other),
            change,
            _NOISE[metric.clears_noise],
        )
    paired = [
        f"{pair.name} of the same {pair.requests:,} requests: {pair.change_ms:+.1f} ±"
        f" {pair.margin_ms:.1f} ms, {pair.faster:.0%} of them faster with B"
        for pair in comparison.paired
    ]
    return Group(
        *(Text(f"{name}: {_described(entry)}") for name, entry in (("A", one), ("B", other))),
        *(Text(f"note: {note}") for note in notes),
        knobs if comparison.knobs else Text("the deployments do not differ"),
        metrics if metrics.row_count else Text("no metric differs"),
        *map(Text, paired),
    )


def _described(entry: RankedCandidate) -> str:
    times = "1 replay" if entry.replicates == 1 else f"{entry.replicates} replays"
    return f"{deployment(entry.config)}, {traffic_handling(entry.config)}; {times}"

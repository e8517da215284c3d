"""What was measured, against its goal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number and the bound that it should keep.

    Attributes:
        subject: what was measured.
        value: in `unit`, rounded to `digits` when shown.
        at_most: the goal, if it is an upper bound.
        at_least: the goal, if it is a lower bound.
        details: the numbers behind it, and what the machine was doing.
    """

    subject: str
    value: float
    unit: str
    details: str
    at_most: float | None = None
    at_least: float | None = None
    digits: int = 2

    @property
    def is_met(self) -> bool:
        """Whether the goal is reached; a number without a goal is for information."""
        return not (
            (self.at_most is not None and self.value > self.at_most)
            or (self.at_least is not None and self.value < self.at_least)
        )

    @property
    def goal(self) -> str:
        """The bound, for a person."""
        if self.at_most is not None:
            return f"at most {self.at_most:g} {self.unit}"
        if self.at_least is not None:
            return f"at least {self.at_least:g} {self.unit}"
        return ""

    @property
    def verdict(self) -> str:
        """For a person, in the table."""
        if not self.goal:
            return ""
        return "[green]met[/]" if self.is_met else "[red]missed[/]"


def show(console: Console, figures: Sequence[Figure]) -> None:
    """Print the table of all figures."""
    table = Table(title="Messaging over a RabbitMQ node of our own", show_lines=True)
    table.add_column("figure", ratio=3)
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("goal", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("behind it", ratio=4)
    for figure in figures:
        table.add_row(
            figure.subject,
            f"{figure.value:,.{figure.digits}f} {figure.unit}",
            figure.goal,
            figure.verdict,
            figure.details,
        )
    console.print(table)

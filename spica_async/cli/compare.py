"""`spica-async compare`: what sets two deployments apart."""

from __future__ import annotations

import json as documents
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spica_async.cli.options import AsJson

if TYPE_CHECKING:
    from schemas.artifact import Artifact
    from schemas.config import SmartSearchConfig
    from schemas.results import RankedCandidate

_HELP = (
    "the folder of a sweep; FOLDER:ID for another candidate than the first of its ranking, or for"
    " its baseline"
)


def compare(
    one: Annotated[str, typer.Argument(help=_HELP, metavar="A")],
    other: Annotated[str, typer.Argument(help=_HELP, metavar="B")],
    *,
    json: AsJson = False,
) -> None:
    """Show in which knobs and metrics two deployments differ, and what of it clears the noise."""
    from spica_async.judge.comparing import compare as compared
    from spica_async.judge.comparing import paired
    from spica_async.report.comparison import comparison_view
    from spica_async.report.tables import print_view

    (first, config, artifact), (second, other_config, other_artifact) = _read(one), _read(other)
    comparison, notes = compared(first, second), _notes(config, other_config)
    if artifact and other_artifact and config.workload == other_config.workload:
        pairs = paired(artifact.requests, other_artifact.requests)
        comparison = replace(comparison, paired=pairs)
    if json:
        document = {"a": first.candidate_id, "b": second.candidate_id, "notes": notes}
        typer.echo(documents.dumps(document | asdict(comparison), indent=2))
    else:
        print_view(comparison_view(first, second, comparison, notes))


def _read(source: str) -> tuple[RankedCandidate, SmartSearchConfig, Artifact | None]:
    from spica_async.config.load import load_config
    from spica_async.report.results import read_artifact, read_entry

    folder, separator, candidate = source.rpartition(":")
    if not separator or Path(source).is_dir():
        folder, candidate = source, ""
    entry = read_entry(Path(folder), candidate or None)
    config = load_config(Path(folder) / "config.yaml")
    return entry, config, read_artifact(Path(folder), entry)


def _notes(one: SmartSearchConfig, other: SmartSearchConfig) -> list[str]:
    """What makes the metrics of two sweeps hard to compare."""
    pairs = {
        "the model": (one.search_space.model_name, other.search_space.model_name),
        "the GPU": (one.search_space.hardware_sku, other.search_space.hardware_sku),
        "the load": (one.workload, other.workload),
        "the SLA": (one.goal.sla, other.goal.sla),
    }
    return [f"{name} is not the same" for name, (mine, theirs) in pairs.items() if mine != theirs]

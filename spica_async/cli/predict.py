"""`spica-async predict`: what one deployment comes to under one load."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spica_async.cli.options import AsJson, Changes, Slots
from spica_async.errors import InputError, SpicaError, first_cause
from spica_async.exit_codes import EXIT_NOTHING_FOUND

if TYPE_CHECKING:
    from schemas.results import RankedCandidate
    from spica_async.config.inputs import Inputs
    from spica_async.report.screen import ProgressConsole


def predict(
    source: Annotated[
        Path,
        typer.Argument(
            help="a YAML file whose lists have one entry each, or the folder of a sweep",
            metavar="FILE|FOLDER",
        ),
    ],
    *,
    candidate: Annotated[
        str | None,
        typer.Option(
            help="of the folder's candidates, e.g. agg-21, or baseline; default: the first of the"
            " ranking",
            metavar="ID",
        ),
    ] = None,
    changes: Changes = None,
    replicates: Annotated[
        int | None,
        typer.Option(min=1, help="replays to make; default: until confirm.precision", metavar="N"),
    ] = None,
    slots: Slots = None,
    json: AsJson = False,
) -> None:
    """Replay one deployment under one load and print all its metrics, with 95 % intervals.

    Nothing is searched, and nothing is kept. With a folder, --set may change the load and the goal.
    """
    from spica_async.cli.logs import log_warnings_to_stderr
    from spica_async.config.inputs import inputs_of
    from spica_async.config.load import load_config
    from spica_async.judge.sweep_result import is_useful
    from spica_async.report.prediction import prediction_view
    from spica_async.report.results import read_entry
    from spica_async.report.screen import ProgressConsole
    from spica_async.report.tables import print_view

    log_warnings_to_stderr()
    progress = ProgressConsole()
    deployment = None
    if source.is_dir():
        for change in changes or ():
            for fixed in ("search_space", "workload.kv_load_ratio"):
                if change.strip().startswith(fixed):
                    raise InputError(f"--set {change}: {fixed} is that of the candidate")
        deployment = read_entry(source, candidate)
        config = load_config(source / "config.yaml", changes or ())
    elif candidate is not None:
        raise InputError(f"--candidate: {source} is no folder of a sweep")
    else:
        config = load_config(source, changes or ())
    inputs = inputs_of(config, progress.print_line)
    entry = _predicted(inputs, deployment, replicates, slots, progress)
    if json:
        typer.echo(entry.model_dump_json(indent=2))
    else:
        print_view(prediction_view(entry, config.goal))
    if not is_useful(entry.objectives, config.goal):
        raise typer.Exit(EXIT_NOTHING_FOUND)


def _predicted(
    inputs: Inputs,
    of_a_sweep: RankedCandidate | None,
    replicates: int | None,
    slots: int | None,
    progress: ProgressConsole,
) -> RankedCandidate:
    from spica_async.judge.scoring import Candidate
    from spica_async.report.screen import known_line, showing
    from spica_async.service.predict import only_deployment, plan_of, predict
    from spica_async.space.sample import ResolvedSample
    from workers.settings import checked_slots

    count = checked_slots(slots)

    async def run(logs: Path) -> RankedCandidate:
        with showing(inputs.config.goal, progress) as display:
            sweep = await plan_of(inputs, display.planning)
            deployment = (
                only_deployment(sweep.plan)
                if of_a_sweep is None
                else ResolvedSample(of_a_sweep.config, of_a_sweep.facts)
            )

            def measured(candidate: Candidate) -> None:
                display.note(known_line(candidate))

            return await predict(
                sweep,
                deployment,
                slots=count,
                replicates=replicates,
                logs=logs,
                measured=measured,
            )

    with tempfile.TemporaryDirectory(prefix="spica-async-") as logs:
        try:
            return asyncio.run(run(Path(logs)))
        except* SpicaError as group:
            raise first_cause(group) from group

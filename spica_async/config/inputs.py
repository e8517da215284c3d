"""Reads and checks everything that a command is given, before any work starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from schemas.config import SmartSearchConfig
from schemas.messages import TraceLoad
from spica_async.errors import InputError, SpicaError, file_problem
from spica_async.evaluate.loads import trace_load
from spica_async.optimizer.vizier_version import check_vizier_version
from spica_async.places import user_cache_folder
from spica_async.plan.process import make_plan
from spica_async.plan.scaling_policies import filter_scaling_policies
from spica_async.plan.span import check_span
from spica_async.plan.types import Progress, SweepPlan
from spica_async.traces.check import TraceError, TraceFacts, check_trace, normal_copy


@dataclass(frozen=True, slots=True)
class Inputs:
    """A configuration that is sound in itself, and its trace if it has one.

    `longest_request` is the most tokens, input and output together, that one request comes to.
    """

    config: SmartSearchConfig
    trace: TraceLoad | None
    longest_request: int

    async def plan(self, progress: Progress) -> SweepPlan:
        """Settle what is searched, in a process of its own.

        Raises:
            InputError: if nothing can be searched, or no deployment may serve the load.
            SpicaError: if the engine failed while it was asked.
        """
        plan = await make_plan(self.config, self.trace, progress)
        if self.longest_request > plan.longest_sequence:
            # The engine would drop such requests and report the means of the others.
            space, workload = self.config.search_space, self.config.workload
            field = "workload.trace_path" if workload.is_trace else "workload.isl"
            limit = "context_length" if space.context_length else "the model's longest sequence"
            extension = plan.model.extension
            more = ""
            if extension and not space.context_length and self.longest_request <= extension.longest:
                more = (
                    f"; search_space.context_length may be up to {extension.longest} for servers"
                    f" that are set up for it: {extension.setting(self.longest_request)}"
                )
            raise InputError(
                f"{field}: the longest request has {self.longest_request} tokens, "
                f"{limit} is {plan.longest_sequence}{more}"
            )
        return plan


def inputs_of(config: SmartSearchConfig, note: Callable[[str], None]) -> Inputs:
    """Check a configuration against the trace that it names.

    Args:
        config: sound in itself.
        note: called with each line that the user should read.

    Raises:
        InputError: if something is wrong with the trace, or does not go with the goal, or the
            optimizer cannot be run as it is installed.
    """
    if config.sweep.optimizer.profile != "random":
        check_vizier_version()
    # Asked again by the plan, in a process of its own; here so that a mistake shows at once.
    policies = filter_scaling_policies(config).kept
    workload = config.workload
    if workload.trace_path is None:
        check_span(workload, policies, None)
        return Inputs(config, None, (workload.isl or 0) + (workload.osl or 0))
    try:
        facts = check_trace(workload.trace_path)
        _note_trace(facts, note)
        if not (facts.is_sorted and facts.is_normal):
            facts = check_trace(_normal(facts.path))
            note(f"what is replayed is the copy {facts.path}")
    except TraceError as error:
        raise InputError(f"workload.trace_path: {error}") from None
    check_span(workload, policies, facts)
    return Inputs(config, trace_load(workload, facts), facts.longest_request)


def _note_trace(facts: TraceFacts, note: Callable[[str], None]) -> None:
    if not facts.is_sorted:
        note(f"warning: {facts.path} is not in order of its timestamps; a sorted copy is used")
    if facts.others:
        names = ", ".join(facts.others)
        note(f"warning: {facts.path} has fields that have no effect in a replay: {names}")
    if facts.sessions:
        note(
            f"{facts.path}: sessions of several turns: {facts.sessions:,}, each a closed loop; "
            f"{facts.later_turns:,} of {facts.requests:,} requests wait for the answer before them "
            "and then for their delay"
        )


def _normal(trace: Path) -> Path:
    folder = user_cache_folder() / "traces"
    try:
        return normal_copy(trace, folder)
    except OSError as error:
        raise SpicaError(
            f"no copy of the trace can be written to {folder}: {file_problem(error)}"
        ) from None

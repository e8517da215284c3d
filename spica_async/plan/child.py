"""The planning process: the one of the coordinator's own that loads the engine.

Run as `python -m spica_async.plan.child`. It reads one pickled `PlanRequest` from stdin, writes
frames of pickled `(kind, value)` pairs to stdout, and ends.
"""

from __future__ import annotations

import pickle
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from schemas.goal import PlannerTarget
from schemas.messages import Sample
from schemas.search_space import Backend, DeploymentMode, Role
from spica_async.childproc import (
    HEADER_BYTES,
    exit_with_parent,
    frame,
    payload_length,
    take_standard_streams,
)
from spica_async.engine import capability, capacity, estimates, facts, planner, runtime
from spica_async.errors import InputError
from spica_async.forecast import Predictor, Window
from spica_async.plan.build import plan_sweep
from spica_async.plan.request import PlanRequest

Kind = Literal["progress", "plan", "input_error", "fault"]


class InstalledEngine:
    """The engine that is installed beside us, as planning asks it."""

    def model_facts(self, model: str) -> facts.ModelFacts:
        """See `facts.model_facts`."""
        return facts.model_facts(model)

    def hardware_facts(self, sku: str) -> facts.HardwareFacts:
        """See `facts.hardware_facts`."""
        return facts.hardware_facts(sku)

    def backend_version(self, sku: str, backend: Backend) -> str:
        """See `facts.backend_version`."""
        return facts.backend_version(sku, backend)

    def needs_wide_ep(self, model: facts.ModelFacts, hardware: facts.HardwareFacts) -> bool:
        """See `facts.needs_wide_ep`."""
        return facts.needs_wide_ep(model, hardware)

    def kv_tokens_per_rank(self, sample: Sample, role: Role) -> int:
        """See `capacity.kv_tokens_per_rank`."""
        return capacity.kv_tokens_per_rank(sample, role)

    def probe_replay(self, sample: Sample) -> str | None:
        """See `capability.probe_replay`."""
        return capability.probe_replay(sample)

    def step_times(
        self, workers: Sequence[tuple[Sample, Role]], steps: estimates.Steps
    ) -> Sequence[estimates.StepTimes | str]:
        """See `estimates.step_times`."""
        return estimates.step_times(workers, steps)

    def ignored_knobs(self, backend: Backend, mode: DeploymentMode) -> Mapping[str, str]:
        """See `capability.ignored_knobs`."""
        return capability.ignored_knobs(backend, mode)

    def unread_planner_knobs(self, planner_target: PlannerTarget) -> Mapping[str, str]:
        """See `capability.unread_planner_knobs`."""
        return capability.unread_planner_knobs(planner_target)

    def unrepresentable_scalars(self) -> Mapping[str, str]:
        """See `capability.UNREPRESENTABLE_SCALARS`."""
        return capability.UNREPRESENTABLE_SCALARS

    def check_planner_fields(self, fields: Mapping[str, JsonValue]) -> str | None:
        """See `planner.check_planner_fields`."""
        return planner.check_planner_fields(fields)

    def trace_windows(self, path: Path, interval_seconds: int) -> Sequence[Window]:
        """See `planner.trace_windows`."""
        return planner.trace_windows(path, interval_seconds)

    def make_predictor(self, fields: Mapping[str, JsonValue], interval_seconds: int) -> Predictor:
        """See `planner.make_predictor`."""
        return planner.make_predictor(fields, interval_seconds)


def main() -> int:
    """Make one plan; the exit code is 0 whenever the answer could be written."""
    # Ctrl-C in a terminal is for the coordinator, which then ends this process itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, answers = take_standard_streams()

    def answer(kind: Kind, value: object) -> None:
        answers.write(frame(pickle.dumps((kind, value))))
        answers.flush()

    length = payload_length(requests.read(HEADER_BYTES))
    # The pickle comes from the parent, which could run any code here anyway.
    request: PlanRequest = pickle.loads(requests.read(length))  # noqa: S301
    exit_with_parent(requests)
    try:
        runtime.prepare()
        plan = plan_sweep(
            request.config,
            InstalledEngine(),
            request.trace,
            lambda line: answer("progress", line),
        )
        answer("plan", plan)
    except InputError as error:
        answer("input_error", str(error))
    except Exception:  # noqa: BLE001  # the parent tells the user, whatever it is
        answer("fault", traceback.format_exc())
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The engine that is installed beside us, as planning asks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from schemas.messages import Sample
from schemas.search_space import Backend, PinnedShape, Role
from spica_async.engine import (
    capability,
    capacity,
    default_shape,
    estimates,
    facts,
    planner,
    runtime,
)
from spica_async.engine.config import engine_config
from spica_async.engine.refusals import RejectionKind, ShapeRejectedError, one_line
from spica_async.plan.answers import Answers
from spica_async.space.sample import sample_key


@dataclass(frozen=True, slots=True)
class _Rejected:
    kind: RejectionKind
    reason: str


_MODEL_FACTS: Final = TypeAdapter(facts.ModelFacts)
_HARDWARE_FACTS: Final = TypeAdapter(facts.HardwareFacts)
_VERSION: Final = TypeAdapter(str)
_SHAPE: Final = TypeAdapter(PinnedShape)
_TOKENS: Final = TypeAdapter[int | _Rejected](int | _Rejected)
_CAN_REPLAY: Final = TypeAdapter(bool)
_STEP_TIMES: Final = TypeAdapter(estimates.StepTimes)


class InstalledEngine:
    """Asks the engine, which takes seconds to load, only for what it has not answered yet.

    Args:
        answers: What it has answered.
        model_folder: Of the model that is planned for, named by what it holds, as questions are
            in which it stands; None if the model ships with the engine.
    """

    # These answer at once, or have answers that cannot be kept.
    ignored_knobs = staticmethod(capability.ignored_knobs)
    unread_planner_knobs = staticmethod(capability.unread_planner_knobs)
    unrepresentable_scalars: Mapping[str, str] = capability.UNREPRESENTABLE_SCALARS
    check_planner_fields = staticmethod(planner.check_planner_fields)
    trace_windows = staticmethod(planner.trace_windows)
    make_predictor = staticmethod(planner.make_predictor)

    def __init__(self, answers: Answers, model_folder: Path | None = None) -> None:
        self._answers = answers
        self._model_folder = None if model_folder is None else str(model_folder)

    def model_facts(self, model: str) -> facts.ModelFacts:
        """See `facts.model_facts`."""
        asked = self._model_folder or model
        try:
            found = self._answers.recall(
                ("model", asked), _MODEL_FACTS, lambda: facts.model_facts(asked)
            )
        except facts.UnknownModelError as error:
            raise facts.UnknownModelError(str(error).replace(asked, model)) from None
        return replace(found, model=model)

    def hardware_facts(self, sku: str) -> facts.HardwareFacts:
        """See `facts.hardware_facts`."""
        return self._answers.recall(
            ("hardware", sku), _HARDWARE_FACTS, lambda: facts.hardware_facts(sku)
        )

    def backend_version(self, sku: str, backend: Backend) -> str:
        """See `facts.backend_version`."""
        return self._answers.recall(
            ("version", sku, backend), _VERSION, lambda: facts.backend_version(sku, backend)
        )

    def default_shape(self, model: str, sku: str, backend: Backend, gpus: int) -> PinnedShape:
        """See `default_shape.default_shape`."""
        asked = self._model_folder or model
        return self._answers.recall(
            ("default_shape", asked, sku, backend, gpus),
            _SHAPE,
            lambda: default_shape.default_shape(asked, sku, backend, gpus),
        )

    def kv_tokens_per_rank(self, sample: Sample, role: Role) -> int:
        """See `capacity.kv_tokens_per_rank`."""
        sample = self._here(sample)

        def ask() -> int | _Rejected:
            try:
                return capacity.kv_tokens_per_rank(sample, role)
            except ShapeRejectedError as error:
                return _Rejected(error.kind, error.reason)
            except BaseException as error:
                # What ships with the engine is sound. A folder may hold anything.
                if self._model_folder is None or not runtime.is_fault(error):
                    raise
                reason = f"the engine fails over the model's folder: {one_line(error)}"
                return _Rejected("unsupported", reason)

        question = ("kv_tokens_per_rank", engine_config(sample, role))
        answer = self._answers.recall(question, _TOKENS, ask)
        if isinstance(answer, _Rejected):
            raise ShapeRejectedError(answer.kind, answer.reason)
        return answer

    def probe_replay(self, sample: Sample) -> str | None:
        """See `capability.probe_replay`; a failure may have had reasons of its moment."""
        sample = self._here(sample)
        question = ("probe_replay", sample_key(sample))
        if self._answers.known(question, _CAN_REPLAY):
            return None
        problem = capability.probe_replay(sample)
        if problem is None:
            self._answers.keep(question, _CAN_REPLAY, answer=True)
        return problem

    def step_times(
        self, workers: Sequence[tuple[Sample, Role]], steps: estimates.Steps
    ) -> Sequence[estimates.StepTimes | str]:
        """See `estimates.step_times`; all that are new are asked for at once."""
        workers = [(self._here(sample), role) for sample, role in workers]
        questions = [_step_question(sample, role, steps) for sample, role in workers]
        known = [self._answers.known(question, _STEP_TIMES) for question in questions]
        new = [index for index, times in enumerate(known) if times is None]
        found: list[estimates.StepTimes | str | None] = list(known)
        if new:
            answers = estimates.step_times([workers[index] for index in new], steps)
            for index, times in zip(new, answers, strict=True):
                found[index] = times
                if isinstance(times, estimates.StepTimes):
                    self._answers.keep(questions[index], _STEP_TIMES, times)
        return [times for times in found if times is not None]

    def _here(self, sample: Sample) -> Sample:
        """The sample as the engine of this process is asked about it."""
        if self._model_folder is None:
            return sample
        return {**sample, "model_name": self._model_folder}


def _step_question(sample: Sample, role: Role, steps: estimates.Steps) -> tuple[Any, ...]:
    timing = engine_config(sample, role)["engine"]["timing_model"]["config"]
    return ("step_times", timing, astuple(steps))

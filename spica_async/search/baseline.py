"""The baseline of a sweep as its facts have made it: what it was measured to be.

Like a branch it depends on the facts alone. It is no candidate: no budget is used by it, and no
optimizer hears of it. Pure: no clock, no I/O.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from schemas.config import SmartSearchConfig
from schemas.journal import Measured
from spica_async.judge.scoring import Candidate
from spica_async.judge.verdict import judge, replayed
from spica_async.space.branch import Selection
from spica_async.space.sample import SampleContext, resolve_kv_load, unroll_sample

BASELINE: Final = "baseline"
"""In place of a branch's name, in facts and results."""


class Baseline:
    """What the candidates of one sweep are held against.

    Args:
        sweep_id: the name of the sweep, and the prefix of its evaluations.
        config: the configuration of the sweep.
        context: what all samples of the sweep have in common.
        selection: what to deploy.

    Attributes:
        evaluation_id: the name of its evaluation.
        sample: the flat deployment.
        candidate: what it was measured to be; none: it is not known, or there is a problem.
        problem: why it cannot be held against anything.
        measured_ids: requests that have their result.
        evaluation_seconds: the workers' time for it.
    """

    def __init__(
        self,
        sweep_id: str,
        config: SmartSearchConfig,
        context: SampleContext,
        selection: Selection,
    ) -> None:
        self.evaluation_id = f"{sweep_id}-{BASELINE}"
        self._config = config
        sample = unroll_sample(context, selection)
        self._resolved = resolve_kv_load(context, selection, sample)
        self.sample = self._resolved.sample
        self.candidate: Candidate | None = None
        self.problem: str | None = self._resolved.no_kv_room
        self.measured_ids: list[str] = []
        self.evaluation_seconds = 0.0

    @property
    def is_known(self) -> bool:
        """Whether it was measured, or cannot be."""
        return self.candidate is not None or self.problem is not None

    def measured(self, fact: Measured) -> bool:
        """Take a result of it; whether that was sound."""
        self.measured_ids.append(fact.result.evaluation_id)
        self.evaluation_seconds += fact.result.wall_seconds
        if self.candidate is not None:
            self.candidate, is_sound = replayed(
                self.candidate,
                fact.result.measurement,
                number=fact.replicate,
                load=fact.load,
                goal=self._config.goal,
            )
            return is_sound
        judged = judge(
            [fact.result.measurement, *fact.others],
            config=self._config,
            candidate_id=self.evaluation_id,
            branch=BASELINE,
            number=0,
            sample=self.sample,
            facts=self._resolved.facts,
        )
        self.candidate = judged.candidate
        if self.candidate is not None and fact.result.measurement.artifact is not None:
            self.candidate = replace(self.candidate, has_artifact=True)
        if self.candidate is None:
            verdict = judged.verdict
            self.problem = f"{verdict.outcome}: {verdict.cause}: {verdict.detail}"
        return self.candidate is not None

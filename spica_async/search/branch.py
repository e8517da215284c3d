"""One branch as its facts have made it: what was suggested, measured and observed.

Whatever changes a branch happens here, as a fact is applied to it, and depends on the facts alone.
So a branch that is given its facts once more is where it was. Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from schemas.config import SmartSearchConfig, SweepControl
from schemas.journal import Measured, SamplerStats, Suggested
from schemas.results import CandidateRecord
from spica_async.judge.scoring import Candidate
from spica_async.judge.verdict import (
    Judged,
    judge,
    metrics_for_sampler,
    refuse,
    replayed,
    soundness,
)
from spica_async.optimizer.proposals import Proposal, Verdicts
from spica_async.plan.types import enumerable_points
from spica_async.search.evaluation import Evaluation, Sampled
from spica_async.search.patience import Patience
from spica_async.search.racing import Race
from spica_async.search.schedule.continuous import ContinuousState, batch_for
from spica_async.search.schedule.rounds import RoundsState
from spica_async.search.schedule.state import BranchState, Disposition, Observation
from spica_async.space.branch import BranchSpace, Selection
from spica_async.space.sample import (
    ResolvedSample,
    SampleContext,
    resolve_kv_load,
    sample_key,
    unroll_sample,
)


@dataclass(frozen=True, slots=True)
class Taken:
    """The outcome of some suggestions.

    Attributes:
        new: new samples, to be evaluated.
        duplicates: proposals of known samples, to find others in place of.
        observations: what the proposer is to observe now.
    """

    new: Sequence[Evaluation] = ()
    duplicates: Sequence[Proposal] = ()
    observations: Sequence[Observation] = ()


class Branch:
    """One branch of one sweep.

    Args:
        sweep_id: its name, and its evaluations' prefix.
        config: the configuration of the sweep.
        context: what its samples have in common.
        space: what is searched.
        on_evaluated: called with the record of each unique sample that has its verdict.
        shared_patience: the patience of the sweep, which all branches together lose.
        race: says what is measured again before it is judged; shared as well.

    Attributes:
        space: what is searched.
        state: budget, attempts and known samples, under the sweep's schedule.
        evaluation_seconds: the workers' time for this branch.
        stats: what its proposer was asked for, and how long that took.
        converged: whether it no longer got better for as long as the sweep's patience allows.
        measured_ids: evaluations that have their result.
        reused: how many of them were answered from the cache of results.
        replicates: replays of what was measured already, during the search.
        open: unique samples without a verdict, by the number of the first proposal of each.
    """

    def __init__(
        self,
        *,
        sweep_id: str,
        config: SmartSearchConfig,
        context: SampleContext,
        space: BranchSpace,
        on_evaluated: Callable[[CandidateRecord], None],
        shared_patience: Patience,
        race: Race,
    ) -> None:
        self.space = space
        self.state = branch_state(config, space)
        self._candidates: dict[int, Candidate] = {}
        self.evaluation_seconds = 0.0
        self.stats = SamplerStats()
        self.converged = False
        self.open: dict[int, Evaluation] = {}
        self.measured_ids: list[str] = []
        self.reused = 0
        self.replicates = 0
        self._sweep_id = sweep_id
        self._config = config
        self._context = context
        self._on_evaluated = on_evaluated
        self._patience = patience(config)
        self._shared_patience = shared_patience
        self._race = race
        self._judged: dict[str, Judged] = {}
        self._weighed: set[str] = set()
        self._unobserved: dict[int, Proposal] = {}
        self._foreseen: dict[int, tuple[Judged, CandidateRecord] | None] = {}

    @property
    def candidates(self) -> list[Candidate]:
        """What was measured, in the order of its arrival."""
        return list(self._candidates.values())

    def candidate(self, number: int) -> Candidate | None:
        """What was measured of a suggestion, if it was the first of its sample."""
        return self._candidates.get(number)

    @property
    def sweep(self) -> SweepControl:
        """The limits that the sweep sets."""
        return self._config.sweep

    @property
    def budget(self) -> int:
        """Unique successes that the sweep asks of the branch."""
        return self._config.sweep.max_rounds * self._config.sweep.per_round

    @property
    def should_conclude(self) -> bool:
        """Whether it is to be ended early: it no longer gets better, or finds nothing at all."""
        if self.state.concluded or self.state.finished:
            return False
        return self._patience.lost or self.state.gives_up

    def sampled(self, proposal: Proposal) -> Sampled:
        """A proposal with the sample that it means."""
        resolved = self._resolve(proposal.selection)
        return Sampled(proposal, resolved, sample_key(resolved.sample))

    def is_new(self, selection: Selection) -> str | None:
        """The key of a selection's sample; None: it was suggested before."""
        key = sample_key(self._resolve(selection).sample)
        return key if self.state.is_new(key) else None

    def suggested(self, fact: Suggested, suggestions: Sequence[Sampled]) -> Taken:
        """Take suggestions, unless they are no longer wanted."""
        if not self.state.takes:
            return Taken()  # It was concluded while they were made.
        current_round = self.state.round
        dispositions, observations = self.state.suggested([one.key for one in suggestions])
        self._unobserved |= {one.proposal.number: one.proposal for one in suggestions}
        new: list[Evaluation] = []
        duplicates: list[Proposal] = []
        for sampled, what in zip(suggestions, dispositions, strict=True):
            if what is not Disposition.NEW:
                duplicates.append(sampled.proposal)
                continue
            number = sampled.proposal.number
            evaluation = Evaluation(
                f"{self._sweep_id}-{self.space.mode}-{number}",
                self.space.mode,
                sampled,
                current_round,
                fact.at,
            )
            refusal = sampled.resolved.no_kv_room
            if refusal is not None:
                judged = refuse("no_kv_room", refusal)
                record = evaluation.record(judged, None, self._config.goal)
                observations += self._settle(evaluation, judged, record)
            else:
                self.open[number] = evaluation
                new.append(evaluation)
        return Taken(new, duplicates[: self.state.wanted], observations)

    def verdict(self, fact: Measured) -> CandidateRecord | None:
        """The record that a result makes, before the result is taken.

        To be called in the order of the facts: what is better than the best until then is measured
        again first, and has no record yet.
        """
        found = self._foreseen[fact.number] = self._judge(fact)
        return found and found[1]

    def measured(self, fact: Measured) -> list[Observation]:
        """Take a result of an evaluation; what the proposer is to observe now."""
        if fact.number not in self._foreseen:
            self._foreseen[fact.number] = self._judge(fact)
        found = self._foreseen.pop(fact.number)
        evaluation = self.open[fact.number]
        evaluation.requested = False
        self.measured_ids.append(fact.result.evaluation_id)
        self.replicates += fact.replicate > 0
        self.reused += fact.reused is not None
        self.evaluation_seconds += fact.result.wall_seconds
        if found is None:
            return []
        del self.open[fact.number]
        return self._settle(evaluation, *found)

    def measured_again(self, fact: Measured) -> bool:
        """Take one more result of a candidate, once the search is over.

        Returns:
            Whether the candidate has one more report, or another load's score, by it.
        """
        self.measured_ids.append(fact.result.evaluation_id)
        self.evaluation_seconds += fact.result.wall_seconds
        self._candidates[fact.number], is_sound = replayed(
            self._candidates[fact.number],
            fact.result.measurement,
            number=fact.replicate,
            load=fact.load,
            goal=self._config.goal,
        )
        return is_sound

    def _judge(self, fact: Measured) -> tuple[Judged, CandidateRecord] | None:
        """The verdict on an evaluation, with its record; None while it is to be measured again."""
        evaluation = self.open[fact.number]
        evaluation.measurements += [fact.result.measurement, *fact.others]
        resolved = evaluation.sampled.resolved
        judged = judge(
            evaluation.measurements,
            config=self._config,
            candidate_id=evaluation.evaluation_id,
            branch=evaluation.branch,
            number=fact.number,
            sample=resolved.sample,
            facts=resolved.facts,
        )
        candidate = judged.candidate
        if candidate is not None:
            last = soundness(fact.result.measurement, self._config.goal)
            if last.outcome == "feasible" and self._race.wants(candidate):
                return None
            self._race.settle(candidate)
        return judged, evaluation.record(judged, fact, self._config.goal)

    def observed(self, observations: Sequence[Observation]) -> Verdicts:
        """Count what is observed; the verdicts for the proposer."""
        verdicts = [
            (
                self._unobserved.pop(one.number),
                metrics_for_sampler(self._judged[one.key].candidate, self._config.goal),
            )
            for one in observations
        ]
        # Under the schedule of rounds this is the order of the suggestions, not of the arrivals.
        for key in dict.fromkeys(one.key for one in observations):
            candidate = self._judged[key].candidate
            if candidate is not None and key not in self._weighed:
                # Each sample counts once for what may end the search early.
                self._weighed.add(key)
                self._patience.add(candidate)
                self._shared_patience.add(candidate)
        return verdicts

    def concluded(self, by: Literal["branch", "sweep"]) -> list[Observation]:
        """Stop asking for suggestions.

        Returns:
            What the proposer is to observe now.
        """
        # Both the sweep and, with its last measurements, the branch may come to this.
        if self.state.finished or self.state.concluded:
            return []
        self.converged = by == "branch"
        return self.state.conclude()

    def _resolve(self, selection: Selection) -> ResolvedSample:
        sample = unroll_sample(self._context, selection)
        return resolve_kv_load(self._context, selection, sample)

    def _settle(
        self, evaluation: Evaluation, judged: Judged, record: CandidateRecord
    ) -> list[Observation]:
        key = evaluation.sampled.key
        self._judged[key] = judged
        if judged.candidate is not None:
            self._candidates[evaluation.sampled.proposal.number] = judged.candidate
        self._on_evaluated(record)
        return self.state.settled(key, judged.verdict)


def branch_state(config: SmartSearchConfig, space: BranchSpace) -> BranchState:
    """The state of a branch that has not begun, under the sweep's schedule."""
    sweep = config.sweep
    points = enumerable_points(config, space)
    if sweep.schedule == "continuous":
        return ContinuousState(
            per_round=sweep.per_round,
            max_rounds=sweep.max_rounds,
            parallel=sweep.parallel_evals,
            batch=batch_for(sweep.parallel_evals),
            points=points,
        )
    return RoundsState(per_round=sweep.per_round, max_rounds=sweep.max_rounds, points=points)


def patience(config: SmartSearchConfig) -> Patience:
    """The measure of what the sweep's patience is lost by."""
    return Patience(
        config.goal.objectives,
        patience=config.sweep.patience,
        min_improvement=config.sweep.min_improvement,
    )

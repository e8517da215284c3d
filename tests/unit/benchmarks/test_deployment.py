"""The simulated deployments of the scheduling benchmark."""

from __future__ import annotations

from statistics import fmean, median

import pytest
from support.planning import plan
from synthetic.deployment import BEST_SCORE, SPACE, score_of, seconds_of

from spica_async.optimizer.quasi_random import draw
from spica_async.optimizer.types import Objective, Study
from spica_async.search.branches import sample_context
from spica_async.space.sample import sample_key, unroll_sample


def test_replays_take_from_one_to_twenty_seconds() -> None:
    seconds = [seconds_of(f"sample {n}") for n in range(2000)]
    assert seconds == [seconds_of(f"sample {n}") for n in range(2000)]
    assert 1 <= min(seconds) < 1.1
    assert 19 < max(seconds) <= 20
    assert median(seconds) == pytest.approx(4.5, rel=0.1)
    assert fmean(seconds) == pytest.approx(6.3, rel=0.1)


def test_scores_differ_widely_and_stay_within_bounds() -> None:
    sweep = plan(SPACE, sweep={"warm_start": False}, goal={"target": "throughput"})
    (space,) = sweep.branches
    context = sample_context(sweep)
    study = Study(space.mode, 1, space.parameters, (Objective("objective", maximize=True),))
    samples = [
        unroll_sample(context, space.select(draw(study, number))[0]) for number in range(500)
    ]
    scores = [score_of(sample) for sample in samples]
    assert len(space.parameters) == 11
    assert len({sample_key(sample) for sample in samples}) > 450
    assert all(0 < score <= BEST_SCORE for score in scores)
    # Chance does not find the best, and half of all samples are bad.
    assert max(scores) < 0.9 * BEST_SCORE
    assert median(scores) < 0.3 * BEST_SCORE

"""Into which tiers asks fall, and what is compiled ahead of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spica_async.optimizer.rehearsal import Rehearsal, made_up_request, rehearsals_after
from spica_async.optimizer.tiers import LARGEST_FITTED_TIER, fitted_count, rows_for
from spica_async.optimizer.types import Objective, Study, Suggestion, Trial
from spica_async.optimizer.wire import AskRequest
from spica_async.space.parameters import FloatParameter


def ask(observed: int, pending: int, count: int) -> AskRequest:
    history = tuple(Trial(n, {}, None) for n in range(observed))
    waiting = tuple(Suggestion(observed + n, {}) for n in range(pending))
    return AskRequest(observed + pending, count, history, waiting)


def test_a_tier_has_room_for_the_whole_ask() -> None:
    assert [rows_for(n) for n in (1, 64, 65, 128, 256, 257)] == [64, 64, 128, 128, 256, 512]


@given(st.integers(1, 2000), st.integers(1, 300))
def test_a_long_history_is_cut_to_the_largest_tier(observed: int, others: int) -> None:
    fitted = fitted_count(observed, others)
    assert 0 < fitted <= observed
    if observed + others <= LARGEST_FITTED_TIER:
        assert fitted == observed
    elif others <= LARGEST_FITTED_TIER // 2:
        assert rows_for(fitted + others) == LARGEST_FITTED_TIER


def test_a_long_history_is_cut_to_one_number_of_trials() -> None:
    assert {
        fitted_count(observed, others) for observed in (256, 300, 999) for others in (1, 8, 32)
    } == {224}
    assert fitted_count(999, 33) == 128


def test_after_a_round_the_next_one_is_prepared() -> None:
    assert list(rehearsals_after(ask(8, 0, 8))) == [
        Rehearsal(64, 0, explores=False),
        Rehearsal(64, 0, explores=True),
        Rehearsal(64, 16, explores=None),
    ]


def test_while_trials_are_pending_any_part_of_them_may_be_observed_next() -> None:
    labels = [r.observed for r in rehearsals_after(ask(10, 3, 2)) if r.explores is None]
    assert labels == [15, 14, 13, 12, 11]


def test_a_tier_that_is_nearly_full_has_the_next_one_prepared() -> None:
    def tiers(request: AskRequest) -> list[int]:
        return sorted({rehearsal.rows for rehearsal in rehearsals_after(request)})

    assert tiers(ask(40, 0, 8)) == [64]
    assert tiers(ask(48, 0, 8)) == [64, 128]
    assert tiers(ask(56, 0, 8)) == [128]
    assert tiers(ask(240, 0, 8)) == [256]  # The history is cut before it needs more.
    assert tiers(ask(500, 0, 8)) == [256]


def test_with_a_long_history_there_is_nothing_new_to_prepare() -> None:
    assert set(rehearsals_after(ask(500, 8, 8))) == set(rehearsals_after(ask(501, 8, 8)))


def test_a_made_up_request_fits_the_study() -> None:
    study = Study(
        "agg",
        1,
        (FloatParameter("x", 0.0, 1.0),),
        (Objective("up", maximize=True), Objective("down", maximize=False)),
    )
    request = made_up_request(study)
    assert request.first == len(request.history) > 0
    for trial in request.history:
        assert trial.metrics is not None
        assert trial.metrics.keys() == {"up", "down"}
    assert len({str(trial.metrics) for trial in request.history}) == len(request.history)

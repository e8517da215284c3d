"""Statistics of errors, and the correlation of orders."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from spica_async.accuracy.errors import error_figures, rank_correlation

SERIES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=3, max_size=12)


def test_errors_are_relative_to_what_was_measured() -> None:
    figures = error_figures([90, 150, 100, 80], [100, 100, 100, 100])
    assert figures.mean == pytest.approx(0.2)
    assert figures.median == pytest.approx(0.15)
    assert figures.p90 == pytest.approx(0.5)
    assert figures.signed_median == pytest.approx(-0.05)


def test_the_ninetieth_percentile_is_an_error_that_occurred() -> None:
    measured = [100.0] * 20
    figures = error_figures([100.0 + error for error in range(20)], measured)
    assert figures.p90 == pytest.approx(0.17)


def test_a_single_point_is_all_there_is() -> None:
    figures = error_figures([11], [10])
    assert figures.mean == figures.median == figures.p90 == figures.signed_median
    assert figures.mean == pytest.approx(0.1)


@given(SERIES)
def test_the_rank_correlation_is_spearmans(pairs: list[tuple[int, int]]) -> None:
    one, other = (list(map(float, series)) for series in zip(*pairs, strict=True))
    found = rank_correlation(one, other)
    if len(set(one)) == 1 or len(set(other)) == 1:
        assert found is None
    else:
        assert found == pytest.approx(stats.spearmanr(one, other).statistic)


def test_too_few_points_have_no_order() -> None:
    assert rank_correlation([1, 2], [1, 2]) is None
    assert rank_correlation([1, 2, 3], [30, 20, 10]) == -1
    with pytest.raises(ValueError, match="series of 1 and 2 values"):
        rank_correlation([1], [1, 2])

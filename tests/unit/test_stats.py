"""Intervals whose coverage can be counted by hand, and fits whose slope is known."""

from __future__ import annotations

import itertools
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.stats import coverage_of, fit_line, interval_words, lack_of_fit, median_interval


def test_five_runs_span_smallest_to_largest_and_say_so() -> None:
    found = median_interval([5.0, 1.0, 4.0, 2.0, 3.0])
    assert (found.value, found.low, found.high) == (3.0, 1.0, 5.0)
    assert found.kind == "interval"
    assert found.coverage == 0.9375
    assert "93.75 %" in interval_words([found])


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_fewer_than_five_runs_have_a_range_and_no_coverage(n: int) -> None:
    found = median_interval([float(i) for i in range(n)])
    assert (found.kind, found.low, found.high, found.coverage) == ("range", 0.0, n - 1.0, None)
    assert "interval of" not in interval_words([found])


def test_no_runs_have_a_reason_and_no_value() -> None:
    found = median_interval([], reason="no control leg")
    assert (found.value, found.n, found.kind, found.reason) == (None, 0, "none", "no control leg")


@pytest.mark.parametrize("n", range(5, 13))
def test_coverage_is_what_counting_gives(n: int) -> None:
    """Each run lies below or above the true median with equal chance: count the ways."""
    found = median_interval([float(i) for i in range(n)])
    assert found.low is not None
    assert found.coverage is not None
    k = int(found.low) + 1
    enclosed = sum(k <= sum(below) <= n - k for below in itertools.product((0, 1), repeat=n))
    assert found.coverage == pytest.approx(enclosed / 2**n)
    assert found.coverage == pytest.approx(coverage_of(n, k))
    assert n == 5 or found.coverage >= 0.95
    assert k == n // 2 or coverage_of(n, k + 1) < 0.95, "not the innermost pair"


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40))
def test_interval_holds_the_median_and_stays_within_the_values(values: list[float]) -> None:
    found = median_interval(values)
    assert found.value == median(values)
    assert found.low is not None
    assert found.high is not None
    assert min(values) <= found.low <= found.value <= found.high <= max(values)


def test_relative_width_needs_two_runs() -> None:
    assert median_interval([2.0]).relative_width is None
    assert median_interval([1.0, 2.0, 3.0]).relative_width == pytest.approx(1.0)
    assert median_interval([0.0, 0.0]).relative_width is None


def test_line_without_noise_is_found_exactly() -> None:
    fit = fit_line([1.0, 2.0, 4.0, 8.0], [3.0, 5.0, 9.0, 17.0])
    assert fit.slope == pytest.approx(2.0)
    assert fit.intercept == pytest.approx(1.0)
    assert fit.slope_low == pytest.approx(2.0)
    assert fit.slope_high == pytest.approx(2.0)


def test_slope_interval_equals_a_textbook_value() -> None:
    """x 1..5, y 1,2,1.3,3.75,2.25: slope 0.425, standard error 0.3051, t(0.975, 3) = 3.1824."""
    fit = fit_line([1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 2.0, 1.3, 3.75, 2.25])
    assert fit.slope == pytest.approx(0.425)
    assert fit.slope_low == pytest.approx(0.425 - 3.1824 * 0.3051, abs=2e-3)
    assert fit.slope_high == pytest.approx(0.425 + 3.1824 * 0.3051, abs=2e-3)


def test_two_node_counts_carry_no_line() -> None:
    fit = fit_line([1.0, 1.0, 8.0, 8.0], [1.0, 1.1, 2.0, 2.1])
    assert fit.slope is None
    assert fit.reason is not None
    assert "3 different" in fit.reason


def test_lack_of_fit_equals_a_textbook_value() -> None:
    """x 1, 2, 3 with repeats (1, 1.2), (3, 3.2), (2, 2.2): pure error 0.06 on 3, lack of fit 3 on 1 degree."""
    found = lack_of_fit([(1.0, [1.0, 1.2]), (2.0, [3.0, 3.2]), (3.0, [2.0, 2.2])])
    assert found.f == pytest.approx(3.0 / 0.02)
    assert found.p == pytest.approx(0.00116, rel=0.05)
    assert found.between_repeats == pytest.approx(0.06 / 3.06)


def test_lack_of_fit_needs_repeats_and_three_places() -> None:
    assert "no repeats" in (lack_of_fit([(1.0, [1.0]), (2.0, [2.0]), (3.0, [9.0])]).reason or "")
    assert "at least 3" in (lack_of_fit([(1.0, [1.0, 2.0]), (2.0, [2.0, 3.0])]).reason or "")
    noise = lack_of_fit([(1.0, [0.0, 2.0]), (2.0, [1.0, 3.0]), (3.0, [2.0, 4.0])])
    assert (noise.p, noise.between_repeats) == (pytest.approx(1.0), pytest.approx(1.0))


def test_equal_values_lie_on_their_line() -> None:
    fit = fit_line([1.0, 2.0, 3.0], [0.0, 0.0, 0.0])
    assert (fit.slope, fit.slope_low, fit.slope_high, fit.r2) == (0.0, 0.0, 0.0, 1.0)

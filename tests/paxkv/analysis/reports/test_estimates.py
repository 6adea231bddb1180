"""Intervals against numbers worked out by hand."""

import math

import pytest

from paxkv.analysis.reports.estimates import T_QUANTILES, estimate, estimate_text


def test_three_seeds_by_hand():
    """2, 4, 6: deviation 2, t(2) = 4.303, so ± 4.303 * 2 / sqrt(3) = 4.9687."""
    found = estimate([2, 4.0, 6])
    assert (found.mean, found.num_values) == (4.0, 3)
    assert found.half_width == pytest.approx(4.303 * 2 / math.sqrt(3), rel=1e-12)
    assert estimate_text(found) == "4.00 ±4.97"
    assert estimate_text(found, digits=0, scale=1000) == "4,000 ±4,969"


def test_two_seeds_by_hand():
    """1, 3: deviation sqrt(2), t(1) = 12.706, so ± 12.706."""
    assert estimate([1.0, 3.0]).half_width == pytest.approx(12.706, rel=1e-12)


def test_one_seed_has_no_interval():
    found = estimate([7.0])
    assert (found.mean, found.half_width, found.num_values) == (7.0, None, 1)
    assert estimate_text(found, digits=1) == "7.0"


def test_what_was_not_measured_is_no_value():
    assert estimate([None, math.nan, 5.0]).num_values == 1
    nothing = estimate([None])
    assert nothing.num_values == 0 and math.isnan(nothing.mean)
    assert estimate_text(nothing) == "-"


def test_beyond_the_table_the_last_quantile():
    found = estimate([0.0, 1.0] * 50)
    deviation = math.sqrt(100 * 0.25 / 99)
    assert found.half_width == pytest.approx(2.042 * deviation / 10, rel=1e-12)


def test_the_table_is_students():
    stats = pytest.importorskip("scipy.stats")
    for index, quantile in enumerate(T_QUANTILES):
        assert quantile == pytest.approx(stats.t.ppf(0.975, index + 1), abs=6e-4)

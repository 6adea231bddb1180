"""Bisection on functions whose capacity is known, and crossings computed by hand."""

import math

import pytest

from paxkv.analysis.capacity import (
    Attempt,
    Outcome,
    find_capacity,
    first_crossing,
    summarized,
)

LIMITS = {"start_per_s": 1.0, "lowest_per_s": 0.01, "highest_per_s": 1000.0}


def step_at(capacity, calls=None):
    """A service that meets its SLO up to `capacity`."""

    def attempt(rate):
        if calls is not None:
            calls.append(rate)
        return Attempt(
            rate_per_s=rate, is_met=rate <= capacity, latency_s={"p99 TTFT": rate * 2.0}
        )

    return attempt


@pytest.mark.parametrize("capacity", [0.011, 0.3, 1.0, 1.5, 2.0, 63.7, 999.0])
@pytest.mark.parametrize("tolerance", [0.5, 0.02, 1e-6])
def test_capacity_of_a_step_function_is_bracketed(capacity, tolerance):
    calls = []
    found = find_capacity(step_at(capacity, calls), tolerance=tolerance, **LIMITS)
    assert found.outcome is Outcome.FOUND
    assert found.rate_per_s <= capacity < found.missed_per_s
    assert found.missed_per_s <= found.rate_per_s * (1 + tolerance)
    assert found.is_monotone
    assert len(calls) == len(set(calls))
    assert [one.rate_per_s for one in found.tried] == sorted(calls)


def test_order_of_the_search_is_exact():
    """Doubles to 8, bisects geometrically: 2^2.5, then 2^2.75; probes at 1.25 times."""
    calls = []
    find_capacity(step_at(6.0, calls), tolerance=0.2, **LIMITS)
    exponents = [0, 1, 2, 3, 2.5, 2.75]
    assert calls[:-1] == pytest.approx([2**e for e in exponents])
    assert calls[-1] == pytest.approx(1.25 * 2**2.75)


def test_no_rate_and_any_rate():
    none = find_capacity(step_at(0.0), **LIMITS)
    assert none.outcome is Outcome.NO_RATE
    assert (none.rate_per_s, none.missed_per_s) == (0.0, 0.01)
    assert none.words() == "no rate meets it: at 0.01/s p99 TTFT is 0.02 s"
    always = find_capacity(step_at(math.inf), **LIMITS)
    assert always.outcome is Outcome.ANY_RATE
    assert (always.rate_per_s, always.missed_per_s) == (1000.0, None)
    assert always.words() == "every rate up to 1000/s meets it; raise the limit"


def test_a_second_region_is_told_and_not_counted():
    """Met up to 3, and again from 3.5: the probe finds it."""

    def attempt(rate):
        return Attempt(rate_per_s=rate, is_met=rate <= 3.0 or 3.5 <= rate < 3.9)

    found = find_capacity(attempt, **LIMITS)
    assert found.rate_per_s <= 3.0 < found.missed_per_s
    assert not found.is_monotone
    assert 3.5 <= found.largest_met_per_s < 3.9
    assert "rates are out of order" in found.words()
    assert find_capacity(attempt, probe=None, **LIMITS).is_monotone


def test_tried_rates_are_summarized_whatever_their_order():
    attempts = [Attempt(rate_per_s=r, is_met=r in (1.0, 4.0)) for r in (4.0, 1.0, 2.0)]
    found = summarized(attempts)
    assert (found.rate_per_s, found.missed_per_s) == (1.0, 2.0)
    assert found.largest_met_per_s == 4.0
    words = "1 x meets it, 2 x does not, and 4 x does: rates are out of order"
    assert found.words(" x") == words
    with pytest.raises(ValueError, match="no rate was tried"):
        summarized([])


@pytest.mark.parametrize(
    "wrong",
    [
        {"start_per_s": 0.0},
        {"lowest_per_s": 2.0},
        {"highest_per_s": 0.5},
        {"highest_per_s": math.inf},
        {"start_per_s": math.nan},
        {"tolerance": 0.0},
        {"tolerance": math.nan},
    ],
)
def test_wrong_searches_are_refused(wrong):
    with pytest.raises(ValueError, match="must be"):
        find_capacity(step_at(1.0), **{**LIMITS, **wrong})


def test_first_crossing_is_linear():
    rates, latencies = [1.0, 2.0, 4.0], [0.1, 0.3, 0.7]
    assert first_crossing(rates, latencies, 0.5) == pytest.approx(3.0)
    assert first_crossing(rates, latencies, 0.2) == pytest.approx(1.5)
    assert first_crossing(rates, latencies, 0.7) is None
    # the first one counts, and what is infinite leaves the rate before it
    assert first_crossing([1.0, 2.0, 3.0], [0.0, 1.0, 0.0], 0.5) == pytest.approx(1.5)
    assert first_crossing([1.0, 2.0], [0.1, math.inf], 0.5) == 1.0


@pytest.mark.parametrize(
    ("rates", "latencies", "says"),
    [
        ([1.0, 1.0], [0.1, 0.2], "must rise"),
        ([], [], "must rise"),
        ([1.0], [math.nan], "nan"),
        ([1.0, 2.0], [0.6, 0.7], "add lower rates"),
    ],
)
def test_crossings_that_are_not_there(rates, latencies, says):
    with pytest.raises(ValueError, match=says):
        first_crossing(rates, latencies, 0.5)

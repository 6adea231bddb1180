from itertools import islice

import numpy as np
import pytest

from paxkv.workloads.arrivals import GAPS_AT_ONCE, arrival_times_s, gaps_s


def times(arrival, count, *, rate_per_s=4.0, burstiness_cv=1.0, seed=0):
    drawn = arrival_times_s(
        np.random.default_rng(seed),
        arrival,
        rate_per_s=rate_per_s,
        burstiness_cv=burstiness_cv,
    )
    return np.array(list(islice(drawn, count)))


@pytest.mark.parametrize("arrival", ["at_once", "closed_loop"])
def test_all_at_the_start(arrival):
    assert times(arrival, 3_000).tolist() == [0.0] * 3_000


@pytest.mark.parametrize(
    ("arrival", "cv"), [("poisson", 1.0), ("gamma", 1.0), ("gamma", 3.0), ("gamma", 0.3)]
)
def test_gaps_have_their_mean_and_spread(arrival, cv):
    gaps = np.diff(times(arrival, 40_000, burstiness_cv=cv), prepend=0.0)
    assert (gaps >= 0).all()
    assert gaps.mean() == pytest.approx(0.25, rel=0.02 * max(1, cv))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


def test_a_poisson_process_has_exponential_gaps():
    """P(gap > mean) is 1/e; the standard deviation alone would not tell."""
    for arrival in ("poisson", "gamma"):
        gaps = np.diff(times(arrival, 40_000), prepend=0.0)
        assert (gaps > 0.25).mean() == pytest.approx(np.exp(-1), abs=0.01)


def test_uniform_gaps_are_equal_and_do_not_drift():
    assert times("uniform", 5).tolist() == [0.25, 0.5, 0.75, 1.0, 1.25]
    assert times("uniform", 100_000, rate_per_s=10.0)[-1] == 10_000.0


@pytest.mark.parametrize("arrival", ["poisson", "gamma", "uniform"])
def test_times_go_on_over_the_lots_that_are_drawn(arrival):
    longer = times(arrival, 3 * GAPS_AT_ONCE)
    assert (np.diff(longer) > 0).all()
    assert times(arrival, 10).tolist() == longer[:10].tolist()


def test_the_rate_only_stretches_time():
    assert times("poisson", 50, rate_per_s=8.0) == pytest.approx(
        times("poisson", 50, rate_per_s=4.0) / 2
    )


def test_gaps_of_one_call_are_those_of_the_process():
    gaps = gaps_s(
        np.random.default_rng(0), "poisson", GAPS_AT_ONCE, rate_per_s=4.0, burstiness_cv=1.0
    )
    assert np.cumsum(gaps).tolist() == times("poisson", GAPS_AT_ONCE).tolist()

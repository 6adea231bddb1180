"""Promises kept and broken, on requests counted by hand."""

import math

import pytest

from paxkv.analysis.latency import LatencyTotals
from paxkv.analysis.slo import SLO, slo_metrics
from paxkv.types import FinishReason, RequestMetrics


def request(ttft_s: float, tpot_s: float, num_tokens: int = 5) -> RequestMetrics:
    times = tuple(10.0 + ttft_s + index * tpot_s for index in range(num_tokens))
    return RequestMetrics(
        request_id=0,
        arrival_s=10.0,
        first_scheduled_s=10.0,
        token_times_s=times,
        finish_s=times[-1],
        num_prompt_tokens=3,
        num_output_tokens=num_tokens,
        num_preemptions=0,
        num_recomputed_tokens=0,
        reason=FinishReason.LENGTH,
    )


def found(slo: SLO, *requests: RequestMetrics, num_lost: int = 0) -> dict:
    totals = LatencyTotals()
    for one in requests:
        totals.add(one)
    num_kept = sum(slo.is_kept_by(one) for one in requests)
    return slo_metrics(slo, totals, len(requests) + num_lost, num_kept)


def test_both_bounds_must_hold():
    slo = SLO(ttft_s=1.0, tpot_s=0.25, percentile=50)
    assert slo.is_kept_by(request(1.0, 0.25))
    assert not slo.is_kept_by(request(1.01, 0.1))
    assert not slo.is_kept_by(request(0.5, 0.26))
    assert slo.is_kept_by(request(0.5, 99.0, num_tokens=1))  # has no TPOT


def test_the_percentile_decides_and_goodput_counts_who_was_served_well():
    slo = SLO(ttft_s=1.0, tpot_s=0.5, percentile=50)
    three = [request(0.5, 0.5), request(0.75, 0.25), request(4.0, 0.25)]
    met = found(slo, *three)
    assert met["is_met"] and met["ttft_found_s"] == 0.75 and met["tpot_found_s"] == 0.25
    assert met["attained_percent"] == pytest.approx(200 / 3)
    assert met["goodput_per_s"] == pytest.approx(2 / 5.0)  # the last ends at 15 s
    assert not found(SLO(ttft_s=1.0, tpot_s=0.5, percentile=99), *three)["is_met"]


def test_a_request_that_was_not_served_breaks_it():
    slo = SLO(ttft_s=1.0, tpot_s=0.5, percentile=50)
    lost = found(slo, request(0.5, 0.5), num_lost=1)
    assert not lost["is_met"] and lost["attained_percent"] == 50
    nothing = found(slo, num_lost=2)
    assert not nothing["is_met"] and nothing["goodput_per_s"] == 0.0
    assert math.isnan(found(slo)["attained_percent"]) and not found(slo)["is_met"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("ttft_s", 0.0), ("tpot_s", -1), ("percentile", 101), ("ttft_s", math.nan)],
)
def test_bad_promises_are_refused(field, value):
    with pytest.raises(ValueError, match=f"slo.{field}"):
        SLO(**{field: value})

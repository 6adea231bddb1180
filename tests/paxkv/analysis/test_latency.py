"""Definitions of DESIGN §4 on requests counted by hand."""

import math

import pytest

from paxkv.analysis.latency import (
    itl_s,
    normalized_latency_s,
    percentile,
    queue_s,
    summarize_latency,
    tpot_s,
    ttft_s,
)
from paxkv.types import FinishReason, RequestMetrics


def make_metrics(
    arrival_s: float,
    token_times_s: tuple[float, ...],
    reason: FinishReason = FinishReason.LENGTH,
    **fields,
) -> RequestMetrics:
    return RequestMetrics(
        **{
            "request_id": 0,
            "arrival_s": arrival_s,
            "first_scheduled_s": arrival_s,
            "token_times_s": token_times_s,
            "finish_s": token_times_s[-1] if token_times_s else arrival_s,
            "num_prompt_tokens": 4,
            "num_output_tokens": len(token_times_s),
            "num_preemptions": 0,
            "num_recomputed_tokens": 0,
            "reason": reason,
            **fields,
        }
    )


def test_one_request():
    request = make_metrics(1.0, (3.0, 4.0, 8.0))
    assert ttft_s(request) == 2.0
    assert tpot_s(request) == 2.5
    assert itl_s(request) == [1.0, 4.0]
    assert normalized_latency_s(request) == pytest.approx(7 / 3)


def test_percentiles_interpolate_linearly():
    assert percentile([1.0, 2.0, 3.0, 4.0], 50.0) == 2.5
    assert percentile([0.0, 10.0], 95.0) == 9.5
    assert math.isnan(percentile([], 50.0))


def test_rejected_and_aborted_requests_are_counted_apart():
    summary = summarize_latency(
        [
            make_metrics(0.0, (1.0, 2.0), num_preemptions=2, num_recomputed_tokens=9),
            make_metrics(2.0, (5.0, 7.0, 10.0), FinishReason.STOP_TOKEN),
            make_metrics(1.0, (2.0, 99.0), FinishReason.ABORTED, num_preemptions=1),
            make_metrics(0.0, (), FinishReason.REJECTED_TOO_LONG),
            make_metrics(0.0, (), FinishReason.REJECTED_EMPTY),
        ]
    )
    counts = (summary.num_finished, summary.num_aborted, summary.num_rejected)
    assert counts == (2, 1, 2)
    assert summary.num_output_tokens == 5
    assert summary.throughput_tokens_per_s == pytest.approx(5 / 10)  # not until 99 s
    assert summary.ttft_p50_s == 2.0  # of 1 and 3
    assert summary.tpot_p50_s == pytest.approx(1.75)  # of 1 and 2.5
    assert summary.itl_p50_s == 2.0  # of 1, 2 and 3
    assert summary.num_preemptions == 3
    assert summary.num_recomputed_tokens == 9


def test_one_output_token_has_no_tpot():
    summary = summarize_latency([make_metrics(0.0, (1.0,))])
    assert summary.ttft_p50_s == 1.0
    assert math.isnan(summary.tpot_p50_s)


def test_nothing_served_is_nan_not_an_error():
    summary = summarize_latency([make_metrics(0.0, (), FinishReason.REJECTED_EMPTY)])
    assert summary.num_rejected == 1
    assert math.isnan(summary.throughput_tokens_per_s)
    assert math.isnan(summary.ttft_p95_s)
    assert math.isnan(summary.normalized_latency_s)


def test_every_reason_is_counted_once():
    requests = [make_metrics(0.0, (1.0, 2.0), reason) for reason in FinishReason]
    summary = summarize_latency(requests)
    counted = summary.num_finished + summary.num_aborted + summary.num_rejected
    assert counted == len(FinishReason)
    not_served = [r for r in FinishReason if r.name.startswith(("REJECTED", "DROPPED"))]
    assert summary.num_rejected == len(not_served)


def test_queueing_ends_with_the_first_slice_and_is_part_of_ttft():
    request = make_metrics(1.0, (4.0, 5.0), first_scheduled_s=3.5)
    assert queue_s(request) == 2.5
    assert ttft_s(request) == 3.0
    summary = summarize_latency([request, make_metrics(0.0, (1.0,))])
    assert summary.queue_p50_s == 1.25

"""How long requests took and how fast tokens came, from `RequestMetrics`."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from paxkv.types import FinishReason, RequestMetrics

SERVED = frozenset({FinishReason.STOP_TOKEN, FinishReason.STOP_STRING, FinishReason.LENGTH})


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySummary:
    """Of the requests that were served; nan where none gives a number."""

    num_finished: int
    num_rejected: int
    num_aborted: int
    num_output_tokens: int  # of finished requests
    throughput_tokens_per_s: float  # these over (last finish - first arrival)
    queue_p50_s: float  # first scheduled - arrival
    queue_p95_s: float
    ttft_p50_s: float
    ttft_p95_s: float
    tpot_p50_s: float
    tpot_p95_s: float
    itl_p50_s: float
    itl_p95_s: float
    normalized_latency_s: float  # mean of (finish - arrival) / output tokens
    num_preemptions: int  # of all requests
    num_recomputed_tokens: int


def queue_s(request: RequestMetrics) -> float:
    """Time in the queue before the first token was computed."""
    assert request.first_scheduled_s is not None, "a served request was scheduled"
    return request.first_scheduled_s - request.arrival_s


def ttft_s(request: RequestMetrics) -> float:
    """Time to the first token: from arrival, so queueing counts."""
    return request.token_times_s[0] - request.arrival_s


def tpot_s(request: RequestMetrics) -> float:
    """Mean time per output token after the first; needs two tokens."""
    times_s = request.token_times_s
    return (times_s[-1] - times_s[0]) / (len(times_s) - 1)


def itl_s(request: RequestMetrics) -> list[float]:
    """Every gap between two tokens in turn."""
    return [after - before for before, after in pairwise(request.token_times_s)]


def normalized_latency_s(request: RequestMetrics) -> float:
    """Whole time in the system per output token."""
    return (request.finish_s - request.arrival_s) / request.num_output_tokens


def percentile(values: Sequence[float], percent: float) -> float:
    """With linear interpolation; nan of nothing."""
    return float(np.percentile(values, percent)) if len(values) else math.nan


def throughput_tokens_per_s(served: Sequence[RequestMetrics]) -> float:
    """Output tokens / (last finish - first arrival); nan if that takes no time."""
    if not served:
        return math.nan
    num_tokens = sum(request.num_output_tokens for request in served)
    start_s = min(request.arrival_s for request in served)
    elapsed_s = max(request.finish_s for request in served) - start_s
    return num_tokens / elapsed_s if elapsed_s > 0 else math.nan


def summarize_latency(requests: Iterable[RequestMetrics]) -> LatencySummary:
    """Percentiles over finished requests; rejected and aborted ones are only counted."""
    requests = list(requests)
    served = [request for request in requests if request.reason in SERVED]
    num_aborted = sum(request.reason is FinishReason.ABORTED for request in requests)
    queued = [queue_s(request) for request in served]
    first = [ttft_s(request) for request in served]
    per_token = [tpot_s(request) for request in served if request.num_output_tokens >= 2]
    gaps = [gap for request in served for gap in itl_s(request)]
    return LatencySummary(
        num_finished=len(served),
        num_rejected=len(requests) - len(served) - num_aborted,
        num_aborted=num_aborted,
        num_output_tokens=sum(request.num_output_tokens for request in served),
        throughput_tokens_per_s=throughput_tokens_per_s(served),
        queue_p50_s=percentile(queued, 50.0),
        queue_p95_s=percentile(queued, 95.0),
        ttft_p50_s=percentile(first, 50.0),
        ttft_p95_s=percentile(first, 95.0),
        tpot_p50_s=percentile(per_token, 50.0),
        tpot_p95_s=percentile(per_token, 95.0),
        itl_p50_s=percentile(gaps, 50.0),
        itl_p95_s=percentile(gaps, 95.0),
        normalized_latency_s=float(np.mean([normalized_latency_s(r) for r in served]))
        if served
        else math.nan,
        num_preemptions=sum(request.num_preemptions for request in requests),
        num_recomputed_tokens=sum(request.num_recomputed_tokens for request in requests),
    )

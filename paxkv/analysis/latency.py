"""How long requests took and how fast tokens came, from `RequestMetrics`."""

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from paxkv.types import FinishReason, RequestMetrics

MOST_VALUES = 1_000_000  # of one latency
PERCENTS = (50, 90, 95, 99)
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


def percentile(values: Sequence[float], percent: float | int) -> float:
    """With linear interpolation; nan of nothing."""
    return float(np.percentile(values, percent)) if len(values) else math.nan


class Values:
    """Numbers for percentiles: all of them, or beyond `MOST_VALUES` a uniform sample
    (reservoir sampling, Vitter 1985), so that a long run needs no more memory."""

    def __init__(self):
        self.count = 0
        self.total = 0.0
        self._kept = array("d")
        self._rng = np.random.default_rng(0)

    def add(self, value: float) -> None:
        if self.count < MOST_VALUES:
            self.total += value
            self.count += 1
            self._kept.append(value)
        else:
            self.extend((value,))

    def extend(self, values: Sequence[float]) -> None:
        self.total += math.fsum(values)
        room = MOST_VALUES - len(self._kept)
        self._kept.extend(values[:room])
        self.count += min(len(values), room)
        for value in values[room:] if len(values) > room else ():
            self.count += 1
            place = int(self._rng.integers(self.count))
            if place < MOST_VALUES:
                self._kept[place] = value

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else math.nan

    def percentile(self, percent: float | int) -> float:
        return percentile(self._kept, percent)

    def spread(self) -> dict[str, float]:
        """Mean and the usual percentiles."""
        found = {f"p{percent}": self.percentile(percent) for percent in PERCENTS}
        return {"mean": self.mean, **found}


class LatencyTotals:
    """Takes in request after request; a few numbers of each are kept."""

    def __init__(self):
        self.queue, self.ttft, self.tpot = Values(), Values(), Values()
        self.itl, self.whole, self.normalized = Values(), Values(), Values()
        self.num_output_tokens = 0
        self._num_requests = 0
        self._num_aborted = 0
        self._num_preemptions = 0
        self._num_recomputed_tokens = 0
        self._first_arrival_s = math.inf
        self._last_finish_s = -math.inf

    def add(self, request: RequestMetrics) -> None:
        self._num_requests += 1
        self._num_aborted += request.reason is FinishReason.ABORTED
        self._num_preemptions += request.num_preemptions
        self._num_recomputed_tokens += request.num_recomputed_tokens
        if request.reason not in SERVED:
            return
        self.queue.add(queue_s(request))
        self.ttft.add(ttft_s(request))
        if request.num_output_tokens >= 2:
            self.tpot.add(tpot_s(request))
        self.itl.extend(itl_s(request))
        self.whole.add(request.finish_s - request.arrival_s)
        self.normalized.add(normalized_latency_s(request))
        self.num_output_tokens += request.num_output_tokens
        self._first_arrival_s = min(self._first_arrival_s, request.arrival_s)
        self._last_finish_s = max(self._last_finish_s, request.finish_s)

    @property
    def elapsed_s(self) -> float:
        """Last finish - first arrival of those that were served; nan of none."""
        elapsed_s = self._last_finish_s - self._first_arrival_s
        return elapsed_s if self.ttft.count else math.nan

    def summary(self) -> LatencySummary:
        num_finished, elapsed_s = self.ttft.count, self.elapsed_s
        return LatencySummary(
            num_finished=num_finished,
            num_rejected=self._num_requests - num_finished - self._num_aborted,
            num_aborted=self._num_aborted,
            num_output_tokens=self.num_output_tokens,
            throughput_tokens_per_s=(
                self.num_output_tokens / elapsed_s if elapsed_s > 0 else math.nan
            ),
            queue_p50_s=self.queue.percentile(50),
            queue_p95_s=self.queue.percentile(95),
            ttft_p50_s=self.ttft.percentile(50),
            ttft_p95_s=self.ttft.percentile(95),
            tpot_p50_s=self.tpot.percentile(50),
            tpot_p95_s=self.tpot.percentile(95),
            itl_p50_s=self.itl.percentile(50),
            itl_p95_s=self.itl.percentile(95),
            normalized_latency_s=self.normalized.mean,
            num_preemptions=self._num_preemptions,
            num_recomputed_tokens=self._num_recomputed_tokens,
        )

    def spreads(self) -> dict[str, dict[str, float]]:
        """Of every latency: its mean and percentiles."""
        return {
            "queue_s": self.queue.spread(),
            "ttft_s": self.ttft.spread(),
            "tpot_s": self.tpot.spread(),
            "itl_s": self.itl.spread(),
            "latency_s": self.whole.spread(),
            "normalized_s": self.normalized.spread(),
        }


def summarize_latency(requests: Iterable[RequestMetrics]) -> LatencySummary:
    """Percentiles over finished requests; rejected and aborted ones are only counted."""
    totals = LatencyTotals()
    for request in requests:
        totals.add(request)
    return totals.summary()

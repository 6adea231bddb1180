"""Turns what a `Replay` tells into metrics and request records, as it goes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paxkv.analysis.latency import SERVED
from paxkv.analysis.request_records import RequestRecord
from paxkv.analysis.serving import ServingTotals
from paxkv.analysis.slo import SLO, slo_metrics
from paxkv.analysis.time_split import TimeSplit
from paxkv.session_feed import Arrival
from paxkv.types import RequestMetrics, RequestUpdate, StepMetrics

OnRecord = Callable[[RequestRecord], object]
OnStep = Callable[[StepMetrics], object]


class RunRecorder:
    """An `Observer`. What it holds grows with the unfinished requests, and a few numbers
    per request for percentiles."""

    def __init__(
        self,
        splits: Sequence[TimeSplit],
        slo: SLO,
        on_record: OnRecord = lambda record: None,
        on_step: OnStep = lambda metrics: None,
        *,
        measure_from_s: float | int = 0.0,
        measure_until_s: float | int | None = None,
    ):
        """
        Args:
          splits: per replica; they hear of its steps from whoever sees the plans.
          on_record: gets each request that ends; `on_step`: each step.
          measure_from_s: steps before, and requests that arrive before, are no part of
            the metrics; neither are those after `measure_until_s`.
        """
        self.totals = ServingTotals()
        self.num_sequences = 0  # that ended, within what is measured
        self._splits = splits
        self._slo = slo
        self._on_record = on_record
        self._on_step = on_step
        self._from_s, self._until_s = measure_from_s, measure_until_s
        self._origins: dict[int, tuple[Arrival, int]] = {}
        self._num_kept = 0

    def arrived(self, request_id: int, arrival: Arrival, replica: int) -> None:
        self._origins[request_id] = (arrival, replica)
        sampling = arrival.sampling
        num_sequences = max(sampling.num_sequences, sampling.num_beams)
        self._splits[replica].arrived(request_id, arrival.arrival_s, num_sequences)

    def stepped(self, metrics: StepMetrics, replica: int) -> None:
        self._on_step(metrics)
        if self._is_measured(metrics.now_s):
            self.totals.add_step(metrics, on_timeline=replica == 0)

    def told(self, update: RequestUpdate, replica: int) -> None:
        if update.metrics is not None:
            self._ended(update.metrics, replica)
        if update.ends_request:
            del self._origins[update.request_id]
            self._splits[replica].left(update.request_id)

    def metrics(self) -> dict[str, Any]:
        """Those of a row of results."""
        latency = self.totals.latency
        return {
            **self.totals.metrics(),
            "latency": latency.spreads(),
            "slo": slo_metrics(self._slo, latency, self.num_sequences, self._num_kept),
        }

    def _ended(self, metrics: RequestMetrics, replica: int) -> None:
        arrival, _ = self._origins[metrics.request_id]
        causes = self._splits[replica].ended(metrics)
        if self._is_measured(metrics.arrival_s):
            self.num_sequences += 1
            self.totals.add_request(metrics)
            is_served = metrics.reason in SERVED
            self._num_kept += is_served and self._slo.is_kept_by(metrics)
        self._on_record(record_of(metrics, arrival, replica, causes))

    def _is_measured(self, time_s: float) -> bool:
        return time_s >= self._from_s and (self._until_s is None or time_s <= self._until_s)


def record_of(
    metrics: RequestMetrics,
    arrival: Arrival,
    replica: int,
    causes: tuple[Mapping[str, float], Mapping[str, float]],
) -> RequestRecord:
    """A request's line in requests.jsonl."""
    times_s = metrics.token_times_s
    return RequestRecord(
        request_id=metrics.request_id,
        sample_index=metrics.sample_index,
        session=arrival.session,
        turn=arrival.turn,
        replica=replica,
        tenant=metrics.tenant,
        arrival_s=metrics.arrival_s,
        first_scheduled_s=metrics.first_scheduled_s,
        first_token_s=times_s[0] if times_s else None,
        finish_s=metrics.finish_s,
        num_prompt_tokens=metrics.num_prompt_tokens,
        num_output_tokens=metrics.num_output_tokens,
        num_cached_tokens=metrics.num_cached_tokens,
        num_preemptions=metrics.num_preemptions,
        num_recomputed_tokens=metrics.num_recomputed_tokens,
        num_swaps=metrics.num_swaps,
        reason=metrics.reason.name,
        ttft_causes_s=causes[0],
        decode_causes_s=causes[1],
    )

"""Which cause a percentile of a latency is made of.

A percentile is a number of one request, and that request may be odd. So the requests around
it in rank are averaged, cause by cause, and the percentile is split in these proportions.
From each cause what the requests would have taken alone is subtracted (`floors`); the cause
with the largest excess dominates: removing it would save most. A percentile within `SLACK`
of what its requests take alone has no dominating cause, however its time is split.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from paxkv.analysis.diagnosis.floors import Floor
from paxkv.analysis.latency import SERVED, percentile
from paxkv.analysis.request_records import CAUSES, RequestRecord

Metric = Literal["ttft", "tpot"]
PERCENTILES = (50, 95, 99)
SLACK = 1.5  # times the unloaded latency: up to here nothing stands out
BAND_SHARE = 0.02  # of the requests, around a percentile
BAND_LEAST = 5
# Most that causes may miss of a latency: a real step is timed before its tokens are
# committed, and a token after. In simulation there is no such gap.
SUM_SHARE, SUM_S = 0.01, 1e-3
CLOSE = 0.8  # a cause with so much of the first one's excess is told beside it
SERVED_NAMES = frozenset(reason.name for reason in SERVED)

Seconds = Mapping[str, float]  # by cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Latency of one request by cause, and what of it remains when it is alone."""

    record: RequestRecord
    total_s: float
    causes_s: Seconds
    floor_s: Seconds  # no cause has more here than in `causes_s`


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One percentile of one metric."""

    metric: Metric
    percent: int
    value_s: float  # the percentile, between ranks as numpy has it
    num_requests: int  # with this metric
    band: tuple[RequestRecord, ...]
    causes_s: Seconds  # in the proportions of the band; they sum to `value_s`
    floor_s: Seconds
    over_median_s: Seconds  # `causes_s` over those of the band of p50

    @property
    def excess_s(self) -> dict[str, float]:
        """What a cause has over the unloaded service."""
        return {c: self.causes_s[c] - self.floor_s.get(c, 0.0) for c in CAUSES}

    @property
    def ranked(self) -> list[str]:
        """Causes, the largest excess first; equal ones in the order of `CAUSES`."""
        excess = self.excess_s
        return sorted(CAUSES, key=lambda cause: -excess[cause])

    @property
    def stands_out(self) -> bool:
        """Whether the band took more than `SLACK` times what it would take alone."""
        return self.value_s > SLACK * sum(self.floor_s.values())

    @property
    def cause(self) -> str | None:
        """The dominating one; None if nothing stands out."""
        return self.ranked[0] if self.stands_out else None

    @property
    def close_second(self) -> str | None:
        """A cause with nearly the excess of the first; None if there is none."""
        if not self.stands_out:
            return None
        first, second = self.ranked[:2]
        close = self.excess_s[second] >= CLOSE * self.excess_s[first]
        return second if close else None

    def share(self, cause: str) -> float:
        """Of the whole latency of the band, in [0, 1]."""
        return self.causes_s[cause] / self.value_s if self.value_s > 0 else 0.0


def diagnose(
    records: Sequence[RequestRecord],
    floor: Floor,
    percentiles: Sequence[int] = PERCENTILES,
) -> list[Finding]:
    """A finding for each metric and percentile; none for a metric that no request has.

    Raises:
      ValueError: causes of a request do not sum to its latency.
    """
    served = [record for record in records if record.reason in SERVED_NAMES]
    findings = []
    for metric, split in (("ttft", first_token_split), ("tpot", next_token_split)):
        splits = [one for r in served if (one := split(r, floor)) is not None]
        splits.sort(key=lambda one: one.total_s)
        if splits:
            findings += [_finding(metric, splits, percent) for percent in percentiles]
    return findings


def first_token_split(record: RequestRecord, floor: Floor) -> Split | None:
    """Of the time to the first token; None if there is none."""
    if record.ttft_s is None:
        return None
    _check_sum(record, "first token", record.ttft_causes_s, record.ttft_s)
    return Split(
        record=record,
        total_s=record.ttft_s,
        causes_s=record.ttft_causes_s,
        floor_s=floor.of_first_token(record),
    )


def next_token_split(record: RequestRecord, floor: Floor) -> Split | None:
    """Of the time per output token after the first; None of fewer than two."""
    if record.tpot_s is None or record.first_token_s is None:
        return None
    after_s = record.finish_s - record.first_token_s
    _check_sum(record, "tokens after the first", record.decode_causes_s, after_s)
    num_next = record.num_output_tokens - 1
    return Split(
        record=record,
        total_s=record.tpot_s,
        causes_s={c: s / num_next for c, s in record.decode_causes_s.items()},
        floor_s=floor.of_next_token(record),
    )


def band(ranked: Sequence[Split], percent: int) -> Sequence[Split]:
    """The nearest by rank: 2 % of them, at least five, all of fewer."""
    count = min(len(ranked), max(BAND_LEAST, math.ceil(BAND_SHARE * len(ranked))))
    middle = percent / 100 * (len(ranked) - 1)
    start = min(max(round(middle - (count - 1) / 2), 0), len(ranked) - count)
    return ranked[start : start + count]


def _finding(metric: Metric, ranked: Sequence[Split], percent: int) -> Finding:
    around = band(ranked, percent)
    causes_s = _scaled_means(ranked, percent, lambda one: one.causes_s)
    median_s = _scaled_means(ranked, 50, lambda one: one.causes_s)
    return Finding(
        metric=metric,
        percent=percent,
        value_s=_percentile(ranked, percent),
        num_requests=len(ranked),
        band=tuple(one.record for one in around),
        causes_s=causes_s,
        floor_s=_scaled_means(ranked, percent, lambda one: one.floor_s),
        over_median_s={c: causes_s[c] - median_s[c] for c in CAUSES},
    )


def _percentile(ranked: Sequence[Split], percent: int) -> float:
    return percentile([one.total_s for one in ranked], percent)


def _scaled_means(
    ranked: Sequence[Split], percent: int, part: Callable[[Split], Seconds]
) -> dict[str, float]:
    """Of the band, as if its mean latency were the percentile."""
    around = band(ranked, percent)
    total_s = math.fsum(one.total_s for one in around)
    scale = _percentile(ranked, percent) / total_s if total_s > 0 else 0.0
    return {c: scale * math.fsum(part(one).get(c, 0.0) for one in around) for c in CAUSES}


def _check_sum(record: RequestRecord, what: str, causes_s: Seconds, took_s: float) -> None:
    total_s = math.fsum(causes_s.values())
    unknown = [cause for cause in causes_s if cause not in CAUSES]
    if unknown or not math.isclose(total_s, took_s, rel_tol=SUM_SHARE, abs_tol=SUM_S):
        known = f"; {unknown} are no causes" if unknown else ""
        raise ValueError(
            f"request {record.request_id}: its {what} took {took_s:.6g} s, and the causes "
            f"of that sum to {total_s:.6g} s{known}. Record the run again: its requests "
            "must be written with their causes."
        )

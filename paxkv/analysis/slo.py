"""What a service promises, and how much of a run kept it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paxkv.analysis.latency import LatencyTotals, tpot_s, ttft_s
from paxkv.checks import Check, named, number_where
from paxkv.types import RequestMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class SLO:
    """At this percentile, of TTFT and of TPOT.

    Raises:
      ValueError, TypeError: a bound is not positive, or no percentile.
    """

    ttft_s: float | int = 1.0
    tpot_s: float | int = 0.1
    percentile: float | int = 99.0

    def __post_init__(self):
        for name, check in _CHECKS.items():
            named(f"slo.{name}", getattr(self, name), check)

    def is_kept_by(self, request: RequestMetrics) -> bool:
        """Both bounds; one output token has no TPOT."""
        if ttft_s(request) > self.ttft_s:
            return False
        return request.num_output_tokens < 2 or tpot_s(request) <= self.tpot_s


_POSITIVE = number_where(lambda x: x > 0, "> 0", "it is a time in seconds")
_CHECKS: Mapping[str, Check] = {
    "ttft_s": _POSITIVE,
    "tpot_s": _POSITIVE,
    "percentile": number_where(lambda x: 0 < x <= 100, "in (0, 100]", "99 is usual"),
}


def slo_metrics(
    slo: SLO, latency: LatencyTotals, num_requests: int, num_kept: int
) -> dict[str, Any]:
    """Whether the run met the SLO, and its goodput: requests that kept it, per second.

    Requests that were not served kept nothing.
    """
    ttft, tpot = latency.ttft.percentile(slo.percentile), math.nan
    if latency.tpot.count:
        tpot = latency.tpot.percentile(slo.percentile)
    served_all = latency.ttft.count == num_requests > 0
    return {
        "ttft_s": slo.ttft_s,
        "tpot_s": slo.tpot_s,
        "percentile": slo.percentile,
        "ttft_found_s": ttft,
        "tpot_found_s": tpot,
        "attained_percent": 100 * num_kept / num_requests if num_requests else math.nan,
        "is_met": served_all and ttft <= slo.ttft_s and not tpot > slo.tpot_s,
        "goodput_per_s": num_kept / latency.elapsed_s if latency.elapsed_s > 0 else 0.0,
    }

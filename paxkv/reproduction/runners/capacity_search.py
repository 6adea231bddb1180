"""The paper's capacity: the rate at which the normalised latency crosses a limit.

Simulates traces of `duration_s` at the rates that `search` (the fields of `Search`) leads
to. The latency is the mean over requests of (finish - arrival) / output tokens (arXiv
2309.06180, section 6.1), between measured points a line.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paxkv.analysis.capacity import first_crossing, search_crossing
from paxkv.reproduction.found import value_at
from paxkv.reproduction.runners.trials import at_rate, metrics_of
from paxkv.trials.simulated import simulate
from paxkv.trials.trial_config import trial_config

KIND = "simulated"
KEPT = ("num_finished", "num_rejected", "num_preemptions", "running_mean")
LATENCY = "normalized_latency_s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How rates are chosen; see `search_crossing`."""

    start_per_s: float | int
    limit_s: float | int = 0.5
    num_rates: int = 4
    step: float | int = 1.2
    latency: str = LATENCY  # path of the metric that crosses the limit


def run(tree: Mapping[str, Any], profile: str) -> dict[str, Any]:
    search = Search(**tree["search"])
    trial, duration_s = trial_config(tree), tree["duration_s"]
    runs: dict[float | int, dict[str, Any]] = {}

    def latency_s(rate_per_s: float | int) -> float:
        outcome = simulate(at_rate(trial, rate_per_s, duration_s), profile)
        runs[rate_per_s] = metrics_of(outcome)
        return float(value_at(outcome.metrics, search.latency))

    found = search_crossing(
        latency_s,
        start_per_s=search.start_per_s,
        limit_s=search.limit_s,
        num_rates=search.num_rates,
        step=search.step,
    )
    rates, latencies = list(found), list(found.values())
    is_bracketed = latencies[0] <= search.limit_s < max(latencies)
    costs = next(iter(runs.values()))["costs"]
    return {
        "capacity_per_s": (
            first_crossing(rates, latencies, search.limit_s) if is_bracketed else None
        ),
        "rates_per_s": rates,
        "latencies_s": latencies,
        "runs": [{"rate_per_s": rate} | {k: runs[rate][k] for k in KEPT} for rate in rates],
        "costs": costs,
    }

"""How far a simulation is from the runs that it predicts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

# What is compared, by path in a row's metrics.
COMPARED: Mapping[str, tuple[str, ...]] = {
    "TTFT p50, s": ("latency", "ttft_s", "p50"),
    "TTFT p95, s": ("latency", "ttft_s", "p95"),
    "TPOT p50, s": ("latency", "tpot_s", "p50"),
    "TPOT p95, s": ("latency", "tpot_s", "p95"),
    "output tokens/s": ("throughput_tokens_per_s",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One number, run and simulated; medians over the same seeds."""

    name: str
    measured: float
    simulated: float
    spread_percent: float  # of the measured ones: (largest - smallest) / median

    @property
    def error_percent(self) -> float:
        """Of the simulation; positive: it is too large."""
        return 100 * (self.simulated / self.measured - 1)


def metric(metrics: Mapping[str, Any], path: Sequence[str]) -> float:
    """The number at a path."""
    value: Any = metrics
    for key in path:
        value = value[key]
    return float(value)


def predictions(
    measured: Sequence[Mapping[str, Any]], simulated: Sequence[Mapping[str, Any]]
) -> list[Prediction]:
    """Of runs and simulations of the same seeds, as metrics of rows.

    Raises:
      ValueError: there are none, or not as many of both.
    """
    if not measured or len(measured) != len(simulated):
        raise ValueError(
            f"{len(measured)} runs and {len(simulated)} simulations; give as many of both, "
            "at least one."
        )
    found = []
    for name, path in COMPARED.items():
        runs = [metric(metrics, path) for metrics in measured]
        middle = median(runs)
        found.append(
            Prediction(
                name=name,
                measured=middle,
                simulated=median(metric(metrics, path) for metrics in simulated),
                spread_percent=100 * (max(runs) - min(runs)) / middle,
            )
        )
    return found


def rank_agreement(measured: Sequence[float], simulated: Sequence[float]) -> float:
    """Kendall's tau-b of two rankings of the same policies (Kendall 1938); 1: the same
    order, -1: the opposite one, nan: one of them does not rank."""
    from scipy.stats import kendalltau  # half a second to import

    if len(measured) != len(simulated):
        raise ValueError(
            f"rankings of {len(measured)} and {len(simulated)} differ in size."
        )
    return float(kendalltau(measured, simulated).statistic)


def prediction_table(found: Sequence[Prediction]) -> str:
    """One line for each number."""
    head = f"{'':>16} {'measured':>10} {'simulated':>10} {'error, %':>9} {'spread, %':>10}"
    lines = [
        f"{one.name:>16} {one.measured:>10.4g} {one.simulated:>10.4g} "
        f"{one.error_percent:>+9.1f} {one.spread_percent:>10.1f}"
        for one in found
    ]
    return "\n".join([head, *lines])

"""When sessions begin: seconds after the start of the run, ascending."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float64

ARRIVALS = ("at_once", "poisson", "gamma", "uniform", "closed_loop", "trace")
WITH_RATE = ("poisson", "gamma", "uniform")
GAPS_AT_ONCE = 1024  # drawn; fixed, so that a longer workload begins with a shorter one


def gaps_s(
    rng: np.random.Generator,
    arrival: str,
    count: int,
    *,
    rate_per_s: float | int,
    burstiness_cv: float | int,
) -> Float64[np.ndarray, "count"]:
    """Seconds between arrivals, the first after the start; `rng` is advanced by "poisson"
    and "gamma".

    Args:
      arrival: one of `ARRIVALS`; of "trace", whose times stand in its file, all are 0.
      burstiness_cv: of "gamma": standard deviation of the gaps over their mean. At 1 they
        are exponential, as those of "poisson"; above, requests come in bursts.
    """
    if arrival == "poisson":
        return rng.exponential(1.0 / rate_per_s, count)
    if arrival == "gamma":
        variance = float(burstiness_cv) ** 2  # of gaps whose mean is 1
        return rng.gamma(1.0 / variance, variance / rate_per_s, count)
    if arrival == "uniform":
        return np.full(count, 1.0 / rate_per_s)
    return np.zeros(count)


def arrival_times_s(
    rng: np.random.Generator,
    arrival: str,
    *,
    rate_per_s: float | int,
    burstiness_cv: float | int,
) -> Iterator[float]:
    """Times without end; `rng` is advanced as by `gaps_s`."""
    num_before, start_s = 0, 0.0
    while True:
        if arrival == "uniform":  # not summed up: a million gaps would drift
            numbers = num_before + 1 + np.arange(GAPS_AT_ONCE)
            times_s = numbers / rate_per_s
        else:
            gaps = gaps_s(
                rng,
                arrival,
                GAPS_AT_ONCE,
                rate_per_s=rate_per_s,
                burstiness_cv=burstiness_cv,
            )
            times_s = start_s + np.cumsum(gaps)
        yield from times_s.tolist()
        num_before, start_s = num_before + GAPS_AT_ONCE, float(times_s[-1])

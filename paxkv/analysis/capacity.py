"""Capacity of a service: the largest rate of requests at which it keeps its promises.

Goodput is the largest rate that meets a service-level objective on the times to the first
and to the next tokens (DistServe, arXiv 2401.09670, §2). It is found by bisection over
runs. Near its capacity a service is a noisy function of the rate, so what was met and
missed may not be in order: that is looked for and told.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

PROBE = 1.25  # times the first rate that missed: where a second region might begin


class Outcome(Enum):
    """How a search ended."""

    FOUND = "the largest rate lies between one that met the SLO and one that missed it"
    NO_RATE = "no rate that was tried meets the SLO"
    ANY_RATE = "every rate up to the limit meets the SLO"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One run at one rate."""

    rate_per_s: float
    is_met: bool
    latency_s: Mapping[str, float] = field(default_factory=dict)  # by name, to be told


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What a search found, and all that it tried, in order of rate."""

    outcome: Outcome
    rate_per_s: float  # all tried up to here met the SLO; 0: not even the lowest
    missed_per_s: float | None  # the smallest that missed; None: none did
    largest_met_per_s: float  # above `rate_per_s` only where rates are out of order
    tried: tuple[Attempt, ...]

    @property
    def is_monotone(self) -> bool:
        """Whether no rate met the SLO above one that missed it."""
        return self.largest_met_per_s <= self.rate_per_s

    def words(self, unit: str = "/s") -> str:
        """The answer as a sentence; `unit` stands behind each rate."""
        if self.outcome is Outcome.NO_RATE:
            lowest = self.tried[0]
            latencies = ", ".join(
                f"{name} is {value:.4g} s" for name, value in lowest.latency_s.items()
            )
            at = f"no rate meets it: at {lowest.rate_per_s:.4g}{unit}"
            return f"{at} {latencies or 'it is missed'}"
        if self.outcome is Outcome.ANY_RATE:
            return f"every rate up to {self.rate_per_s:.4g}{unit} meets it; raise the limit"
        words = (
            f"{self.rate_per_s:.4g}{unit} meets it, {self.missed_per_s:.4g}{unit} does not"
        )
        if not self.is_monotone:
            words += (
                f", and {self.largest_met_per_s:.4g}{unit} does: rates are out of order"
            )
        return words


def find_capacity(
    attempt: Callable[[float], Attempt],
    *,
    start_per_s: float,
    lowest_per_s: float,
    highest_per_s: float,
    tolerance: float = 0.02,
    probe: float | None = PROBE,
) -> Capacity:
    """Doubles or halves the rate until the capacity is bracketed, then bisects.

    The middle of a bracket is the geometric one. `attempt` is called once per rate, and the
    rates depend on nothing but its answers, so that a stopped search can be repeated.

    Args:
      lowest_per_s: one that misses here is not halved further.
      tolerance: most that the two ends may differ, relative to the lower.
      probe: times the first rate that missed, one more is tried beyond; None: none is.

    Raises:
      ValueError: the rates are not in order and positive, or the tolerance is not.
    """
    _check_search(start_per_s, lowest_per_s, highest_per_s, tolerance)
    tried: dict[float, Attempt] = {}

    def is_met(rate_per_s: float) -> bool:
        tried[rate_per_s] = attempt(rate_per_s)
        return tried[rate_per_s].is_met

    met, missed = _bracket(is_met, start_per_s, lowest_per_s, highest_per_s)
    if met is not None and missed is not None:
        while missed > met * (1 + tolerance):
            middle = math.sqrt(met * missed)
            if not met < middle < missed:  # no number lies between them
                break
            if is_met(middle):
                met = middle
            else:
                missed = middle
        beyond = missed * probe if probe is not None else math.inf
        if beyond <= highest_per_s and beyond not in tried:
            is_met(beyond)
    return summarized(list(tried.values()))


def summarized(attempts: Sequence[Attempt]) -> Capacity:
    """The capacity that runs at any rates show; there must be at least one.

    Raises:
      ValueError: there is none.
    """
    if not attempts:
        raise ValueError("no rate was tried; give at least one attempt.")
    tried = tuple(sorted(attempts, key=lambda one: one.rate_per_s))
    met = [one.rate_per_s for one in tried if one.is_met]
    missed = min((one.rate_per_s for one in tried if not one.is_met), default=None)
    in_order = [rate for rate in met if missed is None or rate < missed]
    if missed is None:
        outcome = Outcome.ANY_RATE
    else:
        outcome = Outcome.FOUND if in_order else Outcome.NO_RATE
    return Capacity(
        outcome=outcome,
        rate_per_s=max(in_order, default=0.0),
        missed_per_s=missed,
        largest_met_per_s=max(met, default=0.0),
        tried=tried,
    )


def first_crossing(
    rates_per_s: Sequence[float], latencies_s: Sequence[float], limit_s: float
) -> float | None:
    """The rate at which a latency first reaches a limit, by linear interpolation; None if
    it never does. The capacity of the PagedAttention paper (arXiv 2309.06180, Figure 12),
    where the latency is normalised, by output tokens.

    A latency may be infinite, where the run did not keep up; the rate before it is then
    the answer.

    Raises:
      ValueError: rates do not rise, there are not as many latencies, one is nan, or the
        first is above the limit already.
    """
    points = list(zip(rates_per_s, latencies_s, strict=True))
    rises = all(
        one < other for (one, _), (other, _) in zip(points, points[1:], strict=False)
    )
    if not points or not rises:
        raise ValueError(f"{rates_per_s=} must rise, and be at least one; sort them.")
    if any(math.isnan(latency) for _, latency in points):
        raise ValueError(f"{latencies_s=} has one that is nan; leave that rate out.")
    rate, latency = points[0]
    if latency > limit_s:
        raise ValueError(
            f"at the lowest rate, {rate:.4g}/s, the latency is {latency:.4g} s, above "
            f"{limit_s=}; add lower rates."
        )
    for next_rate, next_latency in points[1:]:
        if next_latency > limit_s:
            share = (limit_s - latency) / (next_latency - latency)
            return rate + (next_rate - rate) * share
        rate, latency = next_rate, next_latency
    return None


def search_crossing(
    latency_s: Callable[[float], float],
    *,
    start_per_s: float | int,
    limit_s: float | int,
    num_rates: int,
    step: float | int = 1.2,
    most_rates: int = 6,
) -> dict[float, float]:
    """Latencies at rates around their first crossing of a limit, in order of rate.

    Goes from the start towards the limit, by the square of the last step, until rates on
    both sides are known, then bisects (geometrically) for as long as `num_rates` are not
    used up. A crossing that is still not bracketed then may take `most_rates`.
    """
    found = {start_per_s: latency_s(start_per_s)}
    is_above = found[start_per_s] > limit_s
    below, above = (None, start_per_s) if is_above else (start_per_s, None)
    while len(found) < (num_rates if below and above else most_rates):
        if above is None:
            assert below is not None, "a rate is on one side"
            rate, step = below * step, step**2
        elif below is None:
            rate, step = above / step, step**2
        else:
            rate = math.sqrt(below * above)
        found[rate] = latency_s(rate)
        if found[rate] > limit_s:
            above = rate
        else:
            below = rate
    return dict(sorted(found.items()))


def _bracket(
    is_met: Callable[[float], bool],
    start_per_s: float,
    lowest_per_s: float,
    highest_per_s: float,
) -> tuple[float | None, float | None]:
    """A rate that met the SLO and a higher one that missed it; None for what there is
    none of."""
    rate = start_per_s
    if is_met(rate):
        while rate < highest_per_s:
            met, rate = rate, min(2 * rate, highest_per_s)
            if not is_met(rate):
                return met, rate
        return rate, None
    while rate > lowest_per_s:
        missed, rate = rate, max(rate / 2, lowest_per_s)
        if is_met(rate):
            return rate, missed
    return None, rate


def _check_search(start: float, lowest: float, highest: float, tolerance: float) -> None:
    if not 0 < lowest <= start <= highest < math.inf:
        raise ValueError(
            f"rates must be 0 < lowest <= start <= highest, not lowest_per_s={lowest}, "
            f"start_per_s={start}, highest_per_s={highest}; set them in this order."
        )
    if not 0 < tolerance < math.inf:
        raise ValueError(f"{tolerance=} must be above 0; 0.02 is two percent.")

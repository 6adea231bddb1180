"""Turns every knob in simulation, and sees whether the named one helps most."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from paxkv.analysis.diagnosis.causes import SERVED_NAMES, Metric
from paxkv.analysis.diagnosis.knobs import KNOBS, PRICE_NAMES, Config, with_changes
from paxkv.analysis.latency import percentile
from paxkv.analysis.request_records import RequestRecord

TIE = 0.02  # of the latency: knobs that close help alike
Simulated = Callable[[Config], Sequence[RequestRecord]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turned:
    """One knob by one step, all else as before."""

    name: str  # in KNOBS
    flags: str
    num_served: int
    after_s: Mapping[tuple[Metric, int], float]
    error: str = ""  # why it could not be simulated; there are no latencies then


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """All knobs that could be turned."""

    num_served: int
    before_s: Mapping[tuple[Metric, int], float]
    turned: tuple[Turned, ...]

    def best(self, metric: Metric, percent: int, price: int) -> Turned | None:
        """The knob that helps this percentile most, of those that cost no more and serve
        as many requests; None if none could be turned."""
        at = metric, percent
        compared = [
            one
            for one in self.turned
            if KNOBS[one.name].price <= price
            and one.num_served >= self.num_served
            and at in one.after_s
        ]
        return min(compared, key=lambda one: one.after_s[at], default=None)

    def confirms(self, name: str, metric: Metric, percent: int) -> bool:
        """Whether the knob helps, and none that costs no more helps more than a tie."""
        at = metric, percent
        after = next((o.after_s.get(at) for o in self.turned if o.name == name), None)
        best = self.best(metric, percent, KNOBS[name].price)
        if after is None or best is None:
            return False
        before_s = self.before_s[at]
        tie_s = TIE * before_s
        return before_s - after > tie_s and after - best.after_s[at] <= tie_s


def turn_all(
    config: Config,
    simulated: Simulated,
    percentiles: Sequence[int],
    on_turned: Callable[[str], object] = lambda name: None,
) -> Verified:
    """Simulates the config, and once more for each knob that can be turned.

    A knob whose config is refused (weights that no longer fit, say) has the error instead.
    """
    base = simulated(config)
    on_turned("as it is")
    turned = []
    for name, knob in KNOBS.items():
        changes = knob.change(config)
        if changes is not None:
            flags = knob.flags(config)
            try:
                records = simulated(with_changes(config, changes))
            except ValueError as error:
                records, message = [], str(error)
            else:
                message = ""
            turned.append(
                Turned(
                    name=name,
                    flags=flags,
                    num_served=num_served(records),
                    after_s=latencies_s(records, percentiles),
                    error=message,
                )
            )
        on_turned(name)
    return Verified(
        num_served=num_served(base),
        before_s=latencies_s(base, percentiles),
        turned=tuple(turned),
    )


def num_served(records: Sequence[RequestRecord]) -> int:
    """Requests that came to their end."""
    return sum(record.reason in SERVED_NAMES for record in records)


def latencies_s(
    records: Sequence[RequestRecord], percentiles: Sequence[int]
) -> dict[tuple[Metric, int], float]:
    """Percentiles of the served requests; none of a metric that no request has."""
    served = [record for record in records if record.reason in SERVED_NAMES]
    values: dict[Metric, list[float]] = {
        "ttft": [r.ttft_s for r in served if r.ttft_s is not None],
        "tpot": [r.tpot_s for r in served if r.tpot_s is not None],
    }
    return {
        (metric, percent): percentile(seconds, percent)
        for metric, seconds in values.items()
        if seconds
        for percent in percentiles
    }


def verify_table(verified: Verified, metric: Metric, percent: int, named: str) -> str:
    """A line a knob, the best first; the named one is marked. What a knob does to the other
    metric stands beside it: many only move the time. Why one was refused stands below."""
    at = metric, percent
    other = ("tpot" if metric == "ttft" else "ttft"), percent
    before_s = verified.before_s[at]
    title, beside = f"{metric.upper()} p{percent}", other[0].upper()
    lines = [
        f"{title + ', one step of each knob':<51} {'after, s':>9} {'change':>10} "
        f"{beside:>10}  price",
        f"  {'as it is':<49} {before_s:>9.4g}",
    ]
    refused: list[str] = []
    for one in sorted(verified.turned, key=lambda o: o.after_s.get(at, math.inf)):
        mark = "*" if one.name == named else " "
        price = PRICE_NAMES[KNOBS[one.name].price]
        flags = one.flags.replace("--config.", "")
        head = f"{mark} {flags:<49}"
        if at not in one.after_s:
            why = f"refused [{len(refused) + 1}]" if one.error else "served nobody"
            refused += [one.error] if one.error else []
            lines.append(f"{head} {'-':>9} {'-':>10} {'-':>10}  {why}")
            continue
        after_s = one.after_s[at]
        change, beside = _change(verified, one, at), _change(verified, one, other)
        lost = verified.num_served - one.num_served
        fewer = f"; {lost} fewer served" if lost > 0 else ""
        lines.append(f"{head} {after_s:>9.4g} {change:>10} {beside:>10}  {price}{fewer}")
    notes = (f"  [{number}] {error}" for number, error in enumerate(refused, 1))
    return "\n".join([*lines, *notes])


def _change(verified: Verified, turned: Turned, at: tuple[Metric, int]) -> str:
    before_s, after_s = verified.before_s.get(at), turned.after_s.get(at)
    if not before_s or after_s is None:
        return "-"
    return f"{100 * (after_s / before_s - 1):+.1f} %"

"""The three sentences under every report: memory saved, waste kept, what it was worth.

Each is computed from the rows that are shown, and holds whoever wins.
"""

import math
from collections.abc import Sequence
from typing import Any

from paxkv.analysis.capacity_rows import rate_unit
from paxkv.analysis.closing import SAME
from paxkv.analysis.reports.counted import pool_bytes
from paxkv.analysis.reports.estimates import estimate_text
from paxkv.analysis.reports.lines import at_highest_load
from paxkv.analysis.reports.loading import name_of, value_at
from paxkv.analysis.reports.settings import RATE, Point
from paxkv.results import Row

HELD = "metrics.held_per_request"
GOODPUT = "metrics.slo.goodput_per_s"
CAPACITY = "metrics.capacity_per_s"
MOST_NAMED = 4


def closing_sentences(
    points: Sequence[Point], capacities: Sequence[Point] = ()
) -> tuple[str, str, str]:
    """Of served workloads and of searches for the capacity; each says if it cannot tell."""
    return (
        "Memory saved: " + _memory_saved(points),
        "Tail waste and metadata kept: " + _waste_kept(points),
        "Effect on useful serving capacity: " + _capacity_effect(points, capacities),
    )


def _memory_saved(points: Sequence[Point]) -> str:
    points, _ = at_highest_load(points)
    found = [(point, point.estimate(HELD)) for point in points]
    found = [(point, held) for point, held in found if held.num_values]
    if not found:
        return (
            "cannot be told, for no request ever waited or no workload was served; raise "
            "the load or lower the pool."
        )
    least, fewest = min(found, key=lambda one: one[1].mean)
    most, largest = max(found, key=lambda one: one[1].mean)
    text = (
        f"with a queue, a running request held {estimate_text(fewest, 0)} positions"
        f"{_bytes(least, fewest.mean)} under {least.label()}"
    )
    if len(found) == 1:
        return text + "; no other setting was run to compare it with."
    saved = 1 - fewest.mean / largest.mean
    if saved <= SAME:
        text += ", and as much under the other settings, within 2 %."
    else:
        text += (
            f" and {estimate_text(largest, 0)} under {most.label()}: "
            f"{100 * saved:.0f} % less."
        )
    never = [p.label() for p in points if not p.estimate(HELD).num_values]
    if never:
        more = f" and {len(never) - MOST_NAMED} others" * (len(never) > MOST_NAMED)
        text += f" Under {', '.join(never[:MOST_NAMED])}{more} no request ever waited."
    return text


def _bytes(point: Point, positions: float) -> str:
    """Of one cache group; positions of several differ in size."""
    row = point.rows[0]
    per_token = value_at(row, "pool.bytes_per_token")
    if not per_token or len(value_at(row, "pool.blocks_per_group") or ()) > 1:
        return ""
    return f" ({positions * per_token / 2**20:,.1f} MiB)"


def _waste_kept(points: Sequence[Point]) -> str:
    parts = []
    tails = [point.estimate("metrics.partition_percent.tail").mean for point in points]
    tails = [tail for tail in tails if math.isfinite(tail)]
    if tails:
        parts.append(f"the rest of last blocks was {_span(tails, 1)} % of the pool")
    tables = [_table_percent(point) for point in points]
    tables = [share for share in tables if share is not None]
    if tables:
        parts.append(
            f"block tables took {_span(tables, 3)} % of its bytes at their largest"
        )
    duplicates = [p.estimate("metrics.duplicate_blocks_peak").mean for p in points]
    if most := max((one for one in duplicates if math.isfinite(one)), default=0):
        parts.append(f"at most {most:,.0f} blocks held what another held, too")
    if not parts:
        return "cannot be told, for no row has the pool's positions while requests wait."
    return ", and ".join(parts) + "."


def _span(values: Sequence[float], digits: int) -> str:
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low} to {high}"


def _table_percent(point: Point) -> float | None:
    total = pool_bytes(point.rows[0])
    table_bytes = point.estimate("metrics.table_bytes_peak").mean
    if not total or not math.isfinite(table_bytes):
        return None
    return 100 * table_bytes / total


def _capacity_effect(points: Sequence[Point], capacities: Sequence[Point]) -> str:
    if any(point.estimate(CAPACITY).num_values for point in capacities):
        what = f"the largest rate that met {slo_text(capacities[0].rows[0])} was"
        unit = rate_unit(capacities[0].rows[0]["config"])
        return _best_and_worst(capacities, CAPACITY, what, unit)
    if any(point.estimate(GOODPUT).num_values for point in points):
        bounds = bounds_text(points[0].rows[0])
        what = f"the most that these runs served within {bounds} was"
        return (
            _best_and_worst(_best_rates(points), GOODPUT, what, "requests/s")
            + " experiments.capacity searches for the largest rate that meets it."
        )
    return "cannot be told, for no row has an objective; run experiments.capacity."


def _best_rates(points: Sequence[Point]) -> list[Point]:
    """Of each setting the point at the rate with the most goodput."""
    best: dict[str, Point] = {}
    for point in points:
        label, goodput = point.label(without=[RATE]), point.estimate(GOODPUT)
        if goodput.num_values and (
            label not in best or goodput.mean > best[label].estimate(GOODPUT).mean
        ):
            best[label] = point
    return list(best.values())


def _best_and_worst(points: Sequence[Point], path: str, what: str, unit: str) -> str:
    found = [(point, point.estimate(path)) for point in points]
    found = [(point, one) for point, one in found if one.num_values]
    best, high = max(found, key=lambda one: one[1].mean)
    worst, low = min(found, key=lambda one: one[1].mean)
    text = f"{what} {estimate_text(high)} {unit} under {best.label()}"
    if len(found) == 1:
        return text + "; nothing else was run to compare it with."
    if high.mean == 0:
        return f"no setting served a request within {bounds_text(points[0].rows[0])}."
    if low.mean == 0:
        return f"{text} and 0 under {worst.label()}."
    ratio = high.mean / low.mean
    if ratio <= 1 + SAME:
        return f"{text}, and the same under all others, within 2 %."
    text += f", {ratio:.2f} times the {estimate_text(low)} under {worst.label()}"
    if _overlap(high.mean, high.half_width, low.mean, low.half_width):
        text += "; their intervals overlap, so more seeds are needed to tell them apart"
    return text + "."


def _overlap(
    high: float, high_half: float | None, low: float, low_half: float | None
) -> bool:
    return high - (high_half or 0.0) <= low + (low_half or 0.0)


def slo_text(row: Row) -> str:
    """The objective in words."""
    percentile = _slo(row).get("percentile")
    at = f" for {percentile:g} % of requests" if percentile is not None else ""
    return bounds_text(row) + at


def bounds_text(row: Row) -> str:
    """The same for a single request, as goodput counts them."""
    slo = _slo(row)
    parts = [
        f"{name.upper()} ≤ {slo[key]:g} s"
        for name, key in (("ttft", "ttft_s"), ("tpot", "tpot_s"))
        if slo.get(key) is not None
    ]
    if not parts:
        return f"the objective of {name_of(row)}"
    return " and ".join(parts)


def _slo(row: Row) -> dict[str, Any]:
    return value_at(row, "metrics.slo") or value_at(row, "config.slo") or {}

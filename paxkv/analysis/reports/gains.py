"""What each idea gains alone and on top of those before it, from a sweep over `ideas`.

A cell of `configs/ablations/stacked_gains.py` is labelled with its ideas: "contiguous" has
none, "paging + GQA + int8" has three. Requests per GB are the mean number that ran while
others waited, over the bytes of the pool: they do not depend on how fast a device is.
Goodput does, and is that of the rate at which it was largest.
"""

import math
from collections.abc import Callable, Sequence

from paxkv.analysis.reports.charts import BarChart, Chart
from paxkv.analysis.reports.counted import pool_bytes
from paxkv.analysis.reports.estimates import Estimate, estimate, estimate_text
from paxkv.analysis.reports.loading import number_at
from paxkv.analysis.reports.settings import Point
from paxkv.analysis.reports.tables import Table
from paxkv.results import Row

AXIS = "ideas"
JOINED_BY = " + "
GOODPUT = "metrics.slo.goodput_per_s"

Groups = dict[str, list[Point]]  # by label: the points at all rates


def requests_per_gb(row: Row) -> float | None:
    """Of K and V, while requests wait; None where none ever did."""
    running, total = number_at(row, "metrics.capacity"), pool_bytes(row)
    return running / (total / 1e9) if running is not None and total else None


def gains_tables(points: Sequence[Point]) -> list[Table]:
    """The ideas one at a time on top of paging, and each pile; none of other rows."""
    groups = _groups(points)
    return [_table(title, groups, labels) for title, labels in _piles(groups).items()]


def gains_charts(points: Sequence[Point]) -> dict[str, tuple[Chart, ...]]:
    """Two panels, of memory and of service, for each table."""
    groups = _groups(points)
    figures = {}
    for index, labels in enumerate(_piles(groups).values()):
        panels = (
            _bars("Memory", "requests per GB of K and V", groups, labels, _memory),
            _bars("Service", "goodput (requests/s)", groups, labels, _goodput),
        )
        figures[f"gains_{index}"] = tuple(panel for panel in panels if panel is not None)
    return {name: panels for name, panels in figures.items() if panels}


def _groups(points: Sequence[Point]) -> Groups:
    groups: Groups = {}
    for point in points:
        label = (point.rows[0].get("cell") or {}).get(AXIS)
        if label is not None:
            groups.setdefault(label, []).append(point)
    return groups


def _piles(groups: Groups) -> dict[str, list[str]]:
    """Labels of each table, its base first. A pile's labels each begin its longest one."""
    ideas = {label: label.split(JOINED_BY) for label in groups}
    none = [label for label, parts in ideas.items() if len(parts) == 1]
    pairs = [label for label, parts in ideas.items() if len(parts) == 2]
    piles = {}
    if pairs and len(none) > 1:
        piles["Ideas one at a time"] = [*none, *pairs]
    for longest, parts in ideas.items():
        ends_a_pile = not any(
            other[: len(parts)] == parts and len(other) > len(parts)
            for other in ideas.values()
        )
        if len(parts) < 3 or not ends_a_pile:
            continue
        bases = [label for label in none if label != parts[0]]
        pile = [label for label, p in ideas.items() if p == parts[: len(p)]]
        pile.sort(key=lambda label: len(ideas[label]))
        piles[f"Ideas stacked, to {longest}"] = [*bases, *pile]
    return piles


def _table(title: str, groups: Groups, labels: Sequence[str]) -> Table:
    memory, goodput = _memory(groups[labels[0]]), _goodput(groups[labels[0]])
    lines = []
    for label in labels:
        points = groups[label]
        per_token = points[0].estimate("pool.bytes_per_token")
        lines.append(
            (
                label,
                str(len(points[0].rows)),
                estimate_text(per_token, 0),
                estimate_text(_memory(points)),
                _times(_memory(points), memory),
                estimate_text(_goodput(points)),
                _times(_goodput(points), goodput),
            )
        )
    return Table(
        title=title,
        head=("ideas", "n", "bytes/token", "requests/GB", "times", "goodput/s", "times"),
        lines=tuple(lines),
    )


def _memory(points: Sequence[Point]) -> Estimate:
    """At the rate with the most steps in which requests wait."""
    best = max(points, key=lambda p: _or_zero(p.estimate("metrics.num_queue_steps").mean))
    return estimate(requests_per_gb(row) for row in best.rows)


def _goodput(points: Sequence[Point]) -> Estimate:
    return max(
        (point.estimate(GOODPUT) for point in points), key=lambda one: _or_zero(one.mean)
    )


def _or_zero(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def _times(value: Estimate, base: Estimate) -> str:
    if not value.num_values or not base.num_values or not base.mean:
        return "-"
    return f"{value.mean / base.mean:.2f}"


def _short(label: str) -> str:
    """The last idea, for those before it are the bars above."""
    *before, last = label.split(JOINED_BY)
    return f"+ {last}" if before else last


def _bars(
    title: str,
    x_label: str,
    groups: Groups,
    labels: Sequence[str],
    measure: Callable[[Sequence[Point]], Estimate],
) -> BarChart | None:
    found = [(label, measure(groups[label])) for label in labels]
    found = [(label, one) for label, one in found if one.num_values]
    if not found:
        return None
    return BarChart(
        title=title,
        x_label=x_label,
        labels=tuple(_short(label) for label, _ in found),
        parts={x_label: tuple(one.mean for _, one in found)},
        half_widths=tuple(one.half_width for _, one in found),
    )

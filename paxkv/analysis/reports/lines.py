"""Lines of a number against a setting or another number, with a line for each rest."""

from collections.abc import Sequence

from paxkv.analysis.reports.charts import LineChart, Series
from paxkv.analysis.reports.estimates import Estimate
from paxkv.analysis.reports.settings import RATE, Point

MAX_LINES = 8  # more styles than that cannot be told apart


def has_axis(points: Sequence[Point], key: str) -> bool:
    """At least two values of it among the points, all of them numbers."""
    values = {point.settings.get(key) for point in points}
    return len(values) > 1 and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    )


def at_highest_load(points: Sequence[Point]) -> tuple[list[Point], str]:
    """Of each setting the point with the highest rate; and what a title says of it."""
    if not has_axis(points, RATE):
        return list(points), ""
    last: dict[str, Point] = {}
    for point in points:
        label = point.label(without=[RATE])
        if label not in last or point.settings[RATE] > last[label].settings[RATE]:
            last[label] = point
    rates = {point.settings[RATE] for point in last.values()}
    at = f" at {rates.pop():g} requests/s" if len(rates) == 1 else " at the highest rate"
    return list(last.values()), at


def lines_along(points: Sequence[Point], key: str, path: str) -> tuple[Series, ...]:
    """The number at `path` against the setting `key`."""
    return _lines(
        [
            (point.label(without=[key]), float(point.settings[key]), point.estimate(path))
            for point in points
        ]
    )


def lines_between(
    points: Sequence[Point], key: str, x_path: str, y_path: str
) -> tuple[Series, ...]:
    """One number against another, of points that differ in `key` joined to a line."""
    found = []
    for point in points:
        x = point.estimate(x_path)
        if x.num_values:
            found.append((point.label(without=[key]), x.mean, point.estimate(y_path)))
    return _lines(found)


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    x_base: int | None = None,
    has_log_y: bool = False,
) -> LineChart | None:
    """None: there is nothing but zeros to draw, or too many lines.

    Args:
      x_base: of a logarithmic axis.
      has_log_y: unless a value is 0.
    """
    values = [y for one in series for y in one.y]
    if not any(values) or len(series) > MAX_LINES:
        return None
    return LineChart(
        title=title,
        x_label=x_label,
        y_label=y_label,
        series=tuple(series),
        x_base=x_base,
        has_log_y=has_log_y and min(values) > 0,
    )


def _lines(found: Sequence[tuple[str, float, Estimate]]) -> tuple[Series, ...]:
    """Points by label, along x; those without a value are left out."""
    by_label: dict[str, list[tuple[float, Estimate]]] = {}
    for label, x, y in found:
        if y.num_values:
            by_label.setdefault(label, []).append((x, y))
    series = []
    for label, members in by_label.items():
        members.sort(key=lambda member: member[0])
        series.append(
            Series(
                label=label,
                x=tuple(x for x, _ in members),
                y=tuple(y.mean for _, y in members),
                half_widths=tuple(y.half_width for _, y in members),
            )
        )
    return tuple(series)

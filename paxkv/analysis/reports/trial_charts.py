"""The figures of served workloads, simulated or measured: those that their rows allow."""

import math
from collections.abc import Callable, Sequence

from paxkv.analysis.plots import CLASS_COLOURS
from paxkv.analysis.reports.charts import BarChart, Chart, LineChart, Series
from paxkv.analysis.reports.estimates import Estimate
from paxkv.analysis.reports.lines import (
    MAX_LINES,
    at_highest_load,
    has_axis,
    line_chart,
    lines_along,
    lines_between,
)
from paxkv.analysis.reports.loading import number_at, value_at
from paxkv.analysis.reports.settings import ADMITTED, BLOCK_SIZE, POOL_SIZE, RATE, Point
from paxkv.analysis.waste import CLASSES
from paxkv.results import Row

MAX_BARS = 16
LATENCY = "metrics.normalized_latency_s"
LATENCY_LABEL = "normalised latency (s per output token)"
RATE_LABEL = "request rate (requests/s)"

Charts = dict[str, tuple[Chart, ...]]


def trial_charts(points: Sequence[Point]) -> Charts:
    """Charts by the name of their figure; without those that no row has numbers for."""
    makers: dict[str, Callable[[Sequence[Point]], Sequence[Chart | None]]] = {
        "latency_against_rate": _against_rate,
        "latency_against_running": _against_running,
        "block_size": _block_sizes,
        "waste": lambda some: [_waste(some)],
        "running_over_time": lambda some: [_over_time(some)],
        "hit_rate_against_capacity": _hit_rate,
        "preemptions": lambda some: [_preemptions(some)],
    }
    figures = {
        name: tuple(chart for chart in make(points) if chart is not None)
        for name, make in makers.items()
    }
    return {name: charts for name, charts in figures.items() if charts}


def _against_rate(points: Sequence[Point]) -> list[Chart | None]:
    if not has_axis(points, RATE):
        return []
    return [
        line_chart(
            lines_along(points, RATE, LATENCY),
            title="Latency against load",
            x_label=RATE_LABEL,
            y_label=LATENCY_LABEL,
            has_log_y=True,
        ),
        line_chart(
            lines_along(points, RATE, "metrics.slo.goodput_per_s"),
            title="Goodput: requests that met the objective",
            x_label=RATE_LABEL,
            y_label="goodput (requests/s)",
        ),
    ]


def _against_running(points: Sequence[Point]) -> list[Chart | None]:
    """More requests at once wait less and are each served more slowly."""
    if has_axis(points, ADMITTED):
        return [
            line_chart(
                lines_along(points, ADMITTED, path),
                title=title,
                x_label="most requests admitted at once",
                y_label=y_label,
                x_base=2,
                has_log_y=True,
            )
            for path, title, y_label in (
                (LATENCY, "Latency against admission", LATENCY_LABEL),
                ("metrics.tpot_p50_s", "Time per token against admission", "TPOT, p50 (s)"),
            )
        ]
    if not has_axis(points, RATE):
        return []
    return [
        line_chart(
            lines_between(points, RATE, "metrics.running_mean", path),
            title=title,
            x_label="running requests, mean",
            y_label=y_label,
            has_log_y=True,
        )
        for path, title, y_label in (
            (LATENCY, "Latency against requests served at once", LATENCY_LABEL),
            ("metrics.tpot_p50_s", "Time per token against the same", "TPOT, p50 (s)"),
        )
    ]


def _block_sizes(points: Sequence[Point]) -> list[Chart | None]:
    if not has_axis(points, BLOCK_SIZE):
        return []
    points, at = at_highest_load(points)
    tail = "metrics.partition_percent.tail"
    return [
        line_chart(
            lines_along(points, BLOCK_SIZE, path),
            title=title + at,
            x_label="block size (tokens)",
            y_label=y_label,
            x_base=2,
            has_log_y=path == LATENCY,
        )
        for path, title, y_label in (
            (LATENCY, "Latency by block size", LATENCY_LABEL),
            ("metrics.throughput_tokens_per_s", "Throughput", "output tokens/s"),
            (tail, "Rest of last blocks", "share of the pool's positions (%)"),
        )
    ]


def _waste(points: Sequence[Point]) -> BarChart | None:
    """Means over steps with a queue: only then is an empty position somebody's loss."""
    points, at = at_highest_load(points)
    shares = {
        name: [p.estimate(f"metrics.partition_percent.{name}").mean for p in points]
        for name in CLASSES
    }
    known = [i for i in range(len(points)) if math.isfinite(shares["token_states"][i])]
    if not known:
        return None
    known = known[:MAX_BARS]
    return BarChart(
        title=f"The pool while requests wait{at}",
        x_label="share of the pool's positions (%)",
        labels=tuple(_label(points[i], at) for i in known),
        parts={
            name.replace("_", " "): tuple(values[i] for i in known)
            for name, values in shares.items()
        },
        half_widths=(None,) * len(known),
        colours={name.replace("_", " "): c for name, c in CLASS_COLOURS.items()},
        x_max=100.0,
    )


def _label(point: Point, at: str) -> str:
    """Without the rate, where the title has it and something else is left."""
    return point.label(without=[RATE] if at else ()) or point.label()


def _over_time(points: Sequence[Point]) -> LineChart | None:
    """Of the first seed of each."""
    points, at = at_highest_load(points)
    series = []
    for point in points:
        timeline = value_at(point.rows[0], "metrics.timeline") or {}
        times, running = timeline.get("time_s"), timeline.get("running")
        if times and running:
            series.append(
                Series(
                    label=_label(point, at),
                    x=tuple(float(time) for time in times),
                    y=tuple(float(count) for count in running),
                    half_widths=(None,) * len(times),
                )
            )
    if not series or len(series) > MAX_LINES:
        return None
    return LineChart(
        title=f"Requests served at once{at}, one seed",
        x_label="time since the start (s)",
        y_label="running requests",
        series=tuple(series),
        has_steps=True,
    )


def _hit_rate(points: Sequence[Point]) -> list[Chart | None]:
    if not has_axis(points, POOL_SIZE):
        return []
    return [
        line_chart(
            lines_along(points, POOL_SIZE, "metrics.prefix_hit_percent"),
            title="Prefix hits against capacity",
            x_label="pool (blocks)",
            y_label="prompt tokens found in the cache (%)",
            x_base=10,
        )
    ]


def _preemptions(points: Sequence[Point]) -> Chart | None:
    path, label = "metrics.num_preemptions", "preemptions of a run"
    if has_axis(points, RATE):
        return line_chart(
            lines_along(points, RATE, path),
            title="Preemptions against load",
            x_label=RATE_LABEL,
            y_label=label,
        )
    found = [(point.label(), point.estimate(path)) for point in points]
    found = [(name, one) for name, one in found if one.num_values][:MAX_BARS]
    if not any(one.mean for _, one in found):
        return None
    return bar_chart("Preemptions", label, found)


def bar_chart(title: str, x_label: str, found: Sequence[tuple[str, Estimate]]) -> BarChart:
    """One bar of each estimate."""
    return BarChart(
        title=title,
        x_label=x_label,
        labels=tuple(name for name, _ in found),
        parts={x_label: tuple(one.mean for _, one in found)},
        half_widths=tuple(one.half_width for _, one in found),
    )


def hit_rate_of_replays(rows: Sequence[Row]) -> LineChart | None:
    """Rows of `experiments.replay_prefixes`: a line for each policy."""
    found = [
        (str(row["policy"]), row["num_blocks"], row["hit_rate_percent"]) for row in rows
    ]
    series = []
    for policy in dict.fromkeys(policy for policy, _, _ in found):
        pairs = sorted((n, rate) for p, n, rate in found if p == policy and n is not None)
        if pairs:
            x, y = zip(*pairs, strict=True)
            halves = (None,) * len(x)
            floats = tuple(float(size) for size in x)
            series.append(Series(label=policy, x=floats, y=y, half_widths=halves))
    if not series or len(series) > MAX_LINES:
        return None
    unlimited = [
        number_at(row, "hit_rate_percent") for row in rows if not row["num_blocks"]
    ]
    level = unlimited[0] if unlimited else None
    return LineChart(
        title="Look-ups that hit",
        x_label="capacity (blocks)",
        y_label="look-ups that hit (%)",
        series=tuple(series),
        x_base=10,
        y_line=None if level is None else (level, "without limit"),
    )

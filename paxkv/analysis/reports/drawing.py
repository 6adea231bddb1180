"""Draws `charts.Figure` with matplotlib (the extra `plots`), as PNG and SVG."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paxkv.analysis.figures import require_matplotlib, save_figure
from paxkv.analysis.reports.charts import BarChart, Figure, LineChart, Series

# Okabe and Ito (2008): told apart with any colour vision; dashes and marks, in print too
STYLES = (
    ("#0072B2", "-", "o"),
    ("#D55E00", "--", "s"),
    ("#009E73", "-.", "^"),
    ("#CC79A7", ":", "v"),
    ("#E69F00", (0, (5, 1)), "D"),
    ("#56B4E9", (0, (3, 1, 1, 1)), "P"),
    ("#000000", (0, (1, 1)), "X"),
    ("#666666", (0, (8, 2)), "*"),
)
HATCHES = ("", "//", "..", "xx", "\\\\", "oo", "--", "++")
MAX_TICKS = 10  # one at each x where a logarithmic axis has so few
LABEL_GAP = 0.052  # of the axis' height, between labels at line ends
PANEL_SIZE = (6.4, 4.2)  # inches
SMALLEST_LABELLED_SHARE = 0.05
MOST_STEPS_TOGETHER = 4  # lines over time in one panel


def draw_figure(figure: Figure, folder: Path) -> str:
    """Writes `<name>.png` and `<name>.svg`, in place of those that are there; the figure as
    an `<svg>` element for a page.

    Raises:
      ImportError: matplotlib is not installed.
      ResultsNotWritten: a file could not be written.
    """
    png, svg = (folder / f"{figure.name}.{ending}" for ending in ("png", "svg"))
    require_matplotlib(png)
    import matplotlib

    drawn = _drawn(figure)
    save_figure(drawn, png, "png")
    # ids that depend on the figure only: equal reports have equal pages
    with matplotlib.rc_context({"svg.hashsalt": figure.name, "svg.fonttype": "path"}):
        save_figure(drawn, svg, "svg")
    return svg_element(svg.read_text("utf-8"))


def svg_element(text: str) -> str:
    """Of a file's text: without declaration, metadata and links, as HTML needs."""
    text = text[text.index("<svg") :]
    start, end = text.find("<metadata>"), text.find("</metadata>")
    if start >= 0:
        text = text[:start] + text[end + len("</metadata>") :]
    for space in ("http://www.w3.org/1999/xlink", "http://www.w3.org/2000/svg"):
        text = text.replace(f' xmlns:xlink="{space}"', "").replace(f' xmlns="{space}"', "")
    return text.replace("xlink:href", "href").strip()


def _drawn(figure: Figure) -> Any:
    from matplotlib.figure import Figure as Canvas

    width, height = PANEL_SIZE
    bars = [len(c.labels) for c in figure.charts if isinstance(c, BarChart)]
    apart = [
        len(c.series) for c in figure.charts if isinstance(c, LineChart) and c.has_steps
    ]
    height = max(
        height, 1.6 + 0.34 * max(bars, default=0), 0.8 + 0.7 * max(apart, default=0)
    )
    size = (width * len(figure.charts), height)
    canvas = Canvas(figsize=size, dpi=130, layout="constrained")
    panels = canvas.subfigures(1, len(figure.charts), squeeze=False)[0]
    for panel, chart in zip(panels, figure.charts, strict=True):
        if isinstance(chart, BarChart):
            _draw_bars(panel.subplots(), chart)
        elif chart.has_steps and len(chart.series) > MOST_STEPS_TOGETHER:
            _draw_apart(panel, chart)
        else:
            _draw_lines(panel.subplots(), chart)
        panel.axes[0].set_title(chart.title, fontsize=10, loc="left")
        for axes in panel.axes:
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(which="both", labelsize=8)
    canvas.suptitle(figure.caption, fontsize=8, color="#444444", x=0.01, ha="left")
    return canvas


def _draw_lines(axes: Any, chart: LineChart) -> None:
    for index, series in enumerate(chart.series):
        colour, dashes, mark = STYLES[index % len(STYLES)]
        if chart.has_steps:
            axes.step(series.x, series.y, where="post", color=colour, ls=dashes, lw=1.4)
            continue
        axes.plot(series.x, series.y, color=colour, ls=dashes, marker=mark, ms=4, lw=1.5)
        known = [i for i, half in enumerate(series.half_widths) if half is not None]
        if known:
            axes.errorbar(
                [series.x[i] for i in known],
                [series.y[i] for i in known],
                yerr=_error_bars(series, known, chart.has_log_y),
                fmt="none",
                ecolor=colour,
                elinewidth=1.0,
                capsize=2.5,
            )
    if chart.y_line is not None:
        level, name = chart.y_line
        axes.axhline(level, color="#999999", lw=1.0)
        axes.annotate(name, (0.01, level), xycoords=("axes fraction", "data"), fontsize=7)
    if chart.x_base is not None:
        axes.set_xscale("log", base=chart.x_base)
        ticks = sorted({x for series in chart.series for x in series.x})
        if len(ticks) <= MAX_TICKS:
            axes.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
            axes.set_xticks([], minor=True)
    else:
        axes.set_xlim(left=0)
    if chart.has_log_y:
        axes.set_yscale("log")
    else:
        top = axes.get_ylim()[1]
        axes.set_ylim(0, top if top > 0 else 1)
    axes.grid(axis="y", color="#E5E5E5", lw=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel(chart.x_label, fontsize=9)
    axes.set_ylabel(chart.y_label, fontsize=9)
    _label_ends(axes, chart)


def _draw_apart(panel: Any, chart: LineChart) -> None:
    """Many lines that go up and down hide each other: each gets a strip of its own."""
    strips = panel.subplots(len(chart.series), 1, sharex=True, sharey=True)
    for index, (axes, series) in enumerate(zip(strips, chart.series, strict=True)):
        colour = STYLES[index % len(STYLES)][0]
        axes.fill_between(series.x, series.y, step="post", color=colour, alpha=0.25, lw=0)
        axes.step(series.x, series.y, where="post", color=colour, lw=1.2)
        axes.annotate(
            series.label,
            (1.01, 0.5),
            xycoords="axes fraction",
            va="center",
            fontsize=8,
            color=colour,
        )
        axes.grid(axis="y", color="#E5E5E5", lw=0.6)
    strips[-1].set_ylim(bottom=0)
    strips[-1].set_xlim(left=0)
    strips[-1].set_xlabel(chart.x_label, fontsize=9)
    panel.supylabel(chart.y_label, fontsize=9)


def _error_bars(series: Series, known: Sequence[int], is_log: bool) -> Any:
    """Below and above; on a logarithmic axis nothing reaches 0."""
    halves = [series.half_widths[i] or 0.0 for i in known]
    below = [
        min(half, 0.95 * series.y[i]) if is_log else half
        for i, half in zip(known, halves, strict=True)
    ]
    return [below, halves]


def _label_ends(axes: Any, chart: LineChart) -> None:
    """The name of each line beside its last point, moved apart where they would touch."""
    low, high = axes.get_ylim()
    to_share = axes.transData + axes.transAxes.inverted()
    wanted: list[tuple[float, int]] = []
    for index, series in enumerate(chart.series):
        if not series.label:
            continue
        share = float(to_share.transform((series.x[-1], series.y[-1]))[1])
        wanted.append((min(max(share, 0.0), 1.0), index))
    placed: list[tuple[float, int]] = []
    for share, index in sorted(wanted):
        lowest = placed[-1][0] + LABEL_GAP if placed else 0.0
        placed.append((max(share, lowest), index))
    overflow = max((share for share, _ in placed), default=0.0) - 1.0
    for share, index in placed:
        series = chart.series[index]
        axes.annotate(
            series.label,
            xy=(series.x[-1], series.y[-1]),
            xytext=(1.02, share - max(overflow, 0.0)),
            textcoords="axes fraction",
            fontsize=8,
            va="center",
            color=STYLES[index % len(STYLES)][0],
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": "#BBBBBB",
                "lw": 0.6,
                "relpos": (0.0, 0.5),  # from the text's start, not through it
            },
        )
    axes.set_ylim(low, high)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _draw_bars(axes: Any, chart: BarChart) -> None:
    rows = range(len(chart.labels))
    lefts = [0.0] * len(chart.labels)
    longest = chart.x_max or max(
        (sum(values) for values in zip(*chart.parts.values(), strict=True)), default=1.0
    )
    for index, (name, values) in enumerate(chart.parts.items()):
        values = [0.0 if math.isnan(value) else value for value in values]
        if not any(values):
            continue
        colour = (chart.colours or {}).get(name) or STYLES[index % len(STYLES)][0]
        stacked = len(chart.parts) > 1
        axes.barh(
            rows,
            values,
            left=lefts,
            color=colour,
            edgecolor="white",
            linewidth=0.5,
            height=0.7,
            hatch=HATCHES[index % len(HATCHES)] if stacked else "",
            label=name,
        )
        for row, (left, value) in enumerate(zip(lefts, values, strict=True)):
            if stacked and value >= SMALLEST_LABELLED_SHARE * longest:
                box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.8}
                middle = left + value / 2
                axes.text(
                    middle,
                    row,
                    _number(value),
                    ha="center",
                    va="center",
                    fontsize=7,
                    bbox=box,
                )
        lefts = [left + value for left, value in zip(lefts, values, strict=True)]
    halves = [half or 0.0 for half in chart.half_widths]
    if any(halves):
        axes.errorbar(
            lefts, rows, xerr=halves, fmt="none", ecolor="#333333", elinewidth=1, capsize=3
        )
    if len(chart.parts) == 1:
        for row, (end, half) in enumerate(zip(lefts, halves, strict=True)):
            axes.annotate(
                _number(end),
                (end + half, row),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
        axes.margins(x=0.12)
    axes.set_yticks(rows, chart.labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, chart.x_max)
    axes.set_xlabel(chart.x_label, fontsize=9)
    if len(chart.parts) > 1:
        axes.legend(
            loc="upper center",
            bbox_to_anchor=(0.5, -0.12),
            ncols=4,
            frameon=False,
            fontsize=8,
        )

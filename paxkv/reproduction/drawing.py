"""A plot per figure: curves beside the paper's points, or all numbers over the paper's."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paxkv.analysis.figures import require_matplotlib, save_png
from paxkv.reproduction.figure import Curves, Points
from paxkv.reproduction.found import label_of, value_at
from paxkv.reproduction.judging import Judged, Verdict
from paxkv.reproduction.table import Report
from paxkv.results import Row

WIDTH_IN, PANEL_IN = 8.0, 3.2
DPI = 90
MOST_INSIDE = 4  # entries of a legend; a longer one stands beside the axes
NUM_COLOURS, MARKERS = 10, "osD"
OUTSIDE = {Verdict.FAIL, Verdict.EXPECTED_FAIL}


def draw(report: Report, path: Path) -> bool:
    """Writes the figure's plot as PNG; False if there is nothing to see.

    Raises:
      ImportError: matplotlib is not installed.
      ResultsNotWritten: the file could not be written.
    """
    require_matplotlib(path)
    rows = [r for r in report.rows if r["metrics"] and r["planted"] is None]
    rows = [r for r in rows if r["profile"] == report.figure.profiles[0]]
    compared = [one for one in report.judged if _is_comparable(one)]
    if report.figure.curves is not None and rows:
        drawn = _curves(report.figure.curves, rows)
    elif len(compared) > 1:
        drawn = _ratios(compared)
    else:
        return False
    drawn.suptitle(f"{report.figure.title} ({report.source})", fontsize=10)
    save_png(drawn, path)
    return True


def _new(num_rows: int, num_columns: int, height_in: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # an extra

    drawn = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, layout="constrained")
    return drawn, drawn.subplots(num_rows, num_columns, squeeze=False)


def _ratios(judged: Sequence[Judged]) -> Any:
    """Ours over the paper's, a line per number, with band and range."""
    drawn, axes = _new(1, 1, 1.0 + 0.28 * len(judged))
    ax = axes[0, 0]
    for place, one in enumerate(judged):
        paper = float(one.check.paper or 0.0)
        if one.check.band is not None:
            low, high = (None if end is None else end / paper for end in one.check.band)
            left, right = (0.0 if low is None else low), (3.0 if high is None else high)
            ax.barh(place, right - left, left=left, height=0.6, color="0.88")
        colour = "C3" if one.verdict in OUTSIDE else "C0"
        ends = [value / paper for value in (min(one.values), max(one.values))]
        ax.plot(ends, [place, place], color=colour, linewidth=2)
        ax.plot(one.mean / paper, place, "o", color=colour, markersize=5)
    ax.axvline(1.0, color="0.4", linewidth=1)
    ax.set_yticks(range(len(judged)), [one.check.name for one in judged], fontsize=8)
    ax.invert_yaxis()
    ax.set_xlabel("ours over the paper's; grey: the band", fontsize=9)
    return drawn


def _is_comparable(one: Judged) -> bool:
    return (
        bool(one.values)
        and not isinstance(one.check.paper, str | None)
        and (one.check.paper != 0)
    )


def _curves(curves: Curves, rows: Sequence[Row]) -> Any:
    panels = _labels(rows, curves.panels)
    lines = _labels(rows, curves.lines)
    drawn, axes = _new(-(-len(panels) // 2), min(len(panels), 2), _height(len(panels)))
    for spare in axes.flat[len(panels) :]:
        spare.set_visible(False)
    for ax, panel in zip(axes.flat, panels, strict=False):
        for place, line in enumerate(lines):
            look = {"color": f"C{place}", "marker": MARKERS[place // NUM_COLOURS]}
            name = "" if line is None else str(line)
            here = [r for r in rows if _is(r, curves.panels, panel)]
            here = [r for r in here if _is(r, curves.lines, line)]
            _plot_line(ax, curves, here, look, f"{name}, ours" if curves.paper else name)
            key = "/".join(str(label) for label in (panel, line) if label is not None)
            if key in curves.paper:
                xs, ys = curves.paper[key]
                label = f"{name}, paper".removeprefix(", ")
                ax.plot(xs, ys, "x--", color=f"C{place}", label=label, lw=1)
        _finish(ax, curves, "" if panel is None else str(panel))
    return drawn


def _plot_line(
    ax: Any, curves: Curves, rows: Sequence[Row], look: Mapping[str, str], label: str
) -> None:
    label = label.removeprefix(", ")
    by_seed: dict[int, list[Row]] = {}
    for row in rows:
        by_seed.setdefault(row["seed"], []).append(row)
    for count, some in enumerate(by_seed.values()):
        xs, ys = _points(curves, some)
        ax.plot(xs, ys, "-", ms=3, lw=1, label=None if count else label, **look)


def _points(curves: Curves, rows: Sequence[Row]) -> Points:
    """Of one line and seed, in order of x."""
    points: list[tuple[float | None, float | None]] = []
    for row in rows:
        y = value_at(row["metrics"], curves.y)
        if isinstance(y, list):
            points += zip(value_at(row["metrics"], curves.x), y, strict=True)
        else:
            points.append((float(label_of(row["labels"], curves.x)), y))
    # a rate or size without a number, as that of a cache without limit, has no place
    placed = sorted((x, y) for x, y in points if x is not None and y is not None)
    return [x for x, _ in placed], [y for _, y in placed]


def _finish(ax: Any, curves: Curves, title: str) -> None:
    if curves.log_x:
        ax.set_xscale("log", base=2)
    if curves.log_y:
        ax.set_yscale("log")
    ax.set_title(title, fontsize=9)
    ax.set_xlabel(curves.x_label, fontsize=9)
    ax.set_ylabel(curves.y_label, fontsize=9)
    ax.tick_params(labelsize=8)
    handles, _ = ax.get_legend_handles_labels()
    if len(handles) > MOST_INSIDE:
        ax.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    elif handles:
        ax.legend(fontsize=7)


def _height(num_panels: int) -> float:
    return PANEL_IN * -(-num_panels // 2)


def _labels(rows: Sequence[Row], axis: str | None) -> list[Any]:
    if axis is None:
        return [None]
    return list(dict.fromkeys(label_of(row["labels"], axis) for row in rows))


def _is(row: Row, axis: str | None, label: Any) -> bool:
    return axis is None or label_of(row["labels"], axis) == label

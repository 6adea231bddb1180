"""Plots of a page of comparisons: the drawn columns of each section, over its first row."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paxkv.analysis.figures import require_matplotlib, save_png
from paxkv.reproduction.since_page import Result

WIDTH_IN, DPI = 8.0, 90
MARKS = ("o", "s", "^", "D")


def draw_group(results: Sequence[Result], path: Path) -> bool:
    """Writes a panel per section: a line of marks for each row, a mark for each drawn
    column, both ends of the seeds' range joined. False if nothing is drawn.

    Raises:
      ImportError: matplotlib is not installed.
      ResultsNotWritten: the file could not be written.
    """
    require_matplotlib(path)
    from matplotlib.figure import Figure  # an extra

    drawn = [result for result in results if _has_points(result)]
    if not drawn:
        return False
    num_lines = -(-len(drawn) // 2)
    figure = Figure(
        figsize=(WIDTH_IN, 0.6 + 2.3 * num_lines), dpi=DPI, layout="constrained"
    )
    axes = figure.subplots(num_lines, min(2, len(drawn)), squeeze=False)
    for spare in axes.flat[len(drawn) :]:
        spare.set_visible(False)
    for ax, result in zip(axes.flat, drawn, strict=False):
        _panel(ax, result)
    axes.flat[0].legend(frameon=False, fontsize=7)
    figure.suptitle(
        f"{drawn[0].section.group}: each number over that of its first row (simulated)",
        fontsize=10,
    )
    save_png(figure, path)
    return True


def _panel(ax: Any, result: Result) -> None:
    rows = list(result.cells)
    for mark, (name, lines) in zip(MARKS, _ratios(result).items(), strict=False):
        colour = f"C{MARKS.index(mark)}"
        for place, values in enumerate(lines):
            if values:
                ends = [min(values), max(values)]
                mean = sum(values) / len(values)
                ax.plot(ends, [place, place], color=colour, linewidth=2)
                label = name if place == 0 else None
                ax.plot(mean, place, mark, color=colour, markersize=5, label=label)
    ax.axvline(1.0, color="0.5", linewidth=0.8)
    ax.set_yticks(range(len(rows)), [", ".join(map(str, row)) for row in rows], fontsize=8)
    ax.invert_yaxis()
    ax.set_xscale("log")
    ticks = (0.1, 0.2, 0.5, 1, 2, 5)
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=8)
    ax.minorticks_off()
    ax.set_title(result.section.figure.title, fontsize=9)
    ax.spines[["top", "right"]].set_visible(False)


def _ratios(result: Result) -> dict[str, list[tuple[float, ...]]]:
    """By drawn column, for each row, seed by seed over the first row."""
    found: dict[str, list[tuple[float, ...]]] = {}
    entries = list(result.cells.values())
    for place, column in enumerate(result.section.columns):
        base = entries[0][place]
        if column.is_drawn and base and all(base):
            found[column.name] = [
                tuple(v / b for v, b in zip(row[place], base, strict=False))
                for row in entries
            ]
    return found


def _has_points(result: Result) -> bool:
    return any(any(values) for lines in _ratios(result).values() for values in lines)

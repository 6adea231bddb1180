"""Figures of result rows. matplotlib (the extra `plots`) is loaded when one is drawn."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paxkv.analysis.figures import require_matplotlib, save_png
from paxkv.analysis.waste import CLASSES
from paxkv.results import Row

# Okabe and Ito (2008): told apart with any colour vision
CLASS_COLOURS = {
    "token_states": "#009E73",
    "tail": "#F0E442",
    "reserved": "#56B4E9",
    "internal": "#D55E00",
    "rounding": "#CC79A7",
    "cached": "#0072B2",
    "free": "#DDDDDD",
}
# colour and dashes, so that lines differ in print too
LINE_STYLES = (("#D55E00", ":"), ("#CC79A7", "-."), ("#56B4E9", "--"), ("#009E73", "-"))
SMALLEST_LABEL_PERCENT = 4.0


def _system(row: Row) -> str:
    return row["system"].replace("_", "\n")


def _draw_partition(axes: Any, rows: Sequence[Row]) -> None:
    """Stacked bars: what each position of the pool was, with a queue."""
    bottoms = [0.0] * len(rows)
    for name in CLASSES:
        shares = [row["metrics"]["partition_percent"][name] for row in rows]
        shares = [0.0 if share is None or math.isnan(share) else share for share in shares]
        if not any(shares):
            continue
        axes.bar(
            range(len(rows)),
            shares,
            bottom=bottoms,
            color=CLASS_COLOURS[name],
            edgecolor="white",
            linewidth=0.5,
            label=name.replace("_", " "),
        )
        for x, (bottom, share) in enumerate(zip(bottoms, shares, strict=True)):
            if share >= SMALLEST_LABEL_PERCENT:
                middle = bottom + share / 2
                axes.text(x, middle, f"{share:.0f}", ha="center", va="center", fontsize=8)
        bottoms = [bottom + share for bottom, share in zip(bottoms, shares, strict=True)]
    axes.set_xticks(range(len(rows)), [_system(row) for row in rows], fontsize=9)
    axes.set_ylim(0, 100)
    axes.set_ylabel("share of the pool's positions (%)")
    axes.set_title("Pool while requests wait", fontsize=10)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles[::-1],
        labels[::-1],
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        frameon=False,
        fontsize=8,
    )


def _draw_running(axes: Any, rows: Sequence[Row]) -> None:
    """Running requests over time, each line named where it ends."""
    for index, row in enumerate(rows):
        colour, dashes = LINE_STYLES[index % len(LINE_STYLES)]
        timeline = row["metrics"]["timeline"]
        axes.step(
            timeline["time_s"],
            timeline["running"],
            where="post",
            color=colour,
            linestyle=dashes,
            linewidth=1.6,
            label=row["system"].replace("_", "-"),
        )
    axes.legend(frameon=False, fontsize=8, handlelength=3)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("time since the first arrival (s)")
    axes.set_ylabel("running requests")
    axes.set_title("Requests served at once", fontsize=10)


def draw_serving(rows: Sequence[Row], path: Path) -> None:
    """Writes the figure of `experiments.serve` as PNG: partition and running requests.

    Raises:
      ImportError: matplotlib is not installed.
      ResultsNotWritten: the file could not be written.
    """
    require_matplotlib(path)
    from matplotlib.figure import Figure

    row = rows[0]
    figure = Figure(figsize=(10.5, 4.2), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.15))
    _draw_partition(left, rows)
    _draw_running(right, rows)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        f"{row['kind']} on {row['device']}: one pool of {row['pool']['positions']:,} "
        f"positions, blocks of {row['pool']['block_size']}, {row['implementation']} "
        f"attention, {row['config']['cache']['dtype']}",
        fontsize=10,
    )
    save_png(figure, path)

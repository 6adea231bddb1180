"""Table and figure of hit rate against capacity. matplotlib (the extra `plots`) is loaded
when the figure is drawn."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paxkv.analysis.figures import require_matplotlib, save_png
from paxkv.results import Row

OPTIMUM = "belady"
# Okabe and Ito (2008): told apart with any colour vision; dashes and marks, in print too
STYLES = (
    ("#0072B2", "-", "o"),
    ("#D55E00", "--", "s"),
    ("#009E73", "-.", "^"),
    ("#CC79A7", ":", "v"),
    ("#56B4E9", "--", "D"),
    ("#E69F00", "-.", "x"),
)


def hit_rate_table(rows: Sequence[Row]) -> str:
    """One line a row; regret is what the optimum has more, in points of hit rate."""
    lines = [
        f"{'blocks':>9} {'policy':<16} {'look-ups':>9} {'hits':>9} {'hit rate %':>10} "
        f"{'evicted':>9} {'regret':>7}"
    ]
    for row in rows:
        lines.append(
            f"{capacity_name(row['num_blocks']):>9} {row['policy']:<16} "
            f"{row['num_lookups']:>9,} {row['num_hits']:>9,} "
            f"{row['hit_rate_percent']:>10.2f} {row['num_evicted']:>9,} "
            f"{row['regret_points']:>7.2f}"
        )
    return "\n".join(lines)


def capacity_name(num_blocks: int | None) -> str:
    """As in the table and in flags."""
    return "inf" if num_blocks is None else str(num_blocks)


def draw_hit_rates(rows: Sequence[Row], path: Path) -> None:
    """Writes hit rate against capacity as PNG, a line for each policy.

    Raises:
      ImportError: matplotlib is not installed.
      ResultsNotWritten: the file could not be written.
    """
    require_matplotlib(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.4), dpi=150, layout="constrained")
    axes = figure.subplots()
    limited = [row for row in rows if row["num_blocks"] is not None]
    for index, policy in enumerate(dict.fromkeys(row["policy"] for row in limited)):
        _draw_policy(axes, policy, limited, index)
    unlimited = [row["hit_rate_percent"] for row in rows if row["num_blocks"] is None]
    if unlimited:
        axes.axhline(unlimited[0], color="#999999", linewidth=1.0, label="without limit")
    if limited:
        axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("capacity (blocks)")
    axes.set_ylabel("look-ups that hit (%)")
    axes.set_title(
        f"{rows[0]['trace']}: {rows[0]['num_lookups']:,} look-ups, simulated", fontsize=10
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, handlelength=3)
    save_png(figure, path)


def _draw_policy(axes: Any, policy: str, rows: Sequence[Row], index: int) -> None:
    points = sorted(
        (row["num_blocks"], row["hit_rate_percent"])
        for row in rows
        if row["policy"] == policy
    )
    colour, dashes, mark = STYLES[index % len(STYLES)]
    if policy == OPTIMUM:
        colour, dashes, mark = "#000000", "-", "*"
    axes.plot(
        *zip(*points, strict=True),
        color=colour,
        linestyle=dashes,
        marker=mark,
        markersize=4,
        linewidth=1.4,
        label=policy,
    )

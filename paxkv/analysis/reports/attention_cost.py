"""Attention time per token of context: is it the same, however the blocks lie?

From rows of `experiments.bench_attention` and of `experiments.compare_caches --measured`.
Paging adds the look-up of a block's place; what is read per token stays the same, but for
the rest of a last block. A block as long as the context is what a contiguous cache has.
"""

from collections.abc import Sequence

from paxkv.analysis.reports.charts import Chart, Series
from paxkv.analysis.reports.lines import line_chart
from paxkv.analysis.reports.tables import Table
from paxkv.results import Row

MODES = {False: "decoding", True: "prefill"}
YARDSTICKS = ("read,", "product,")  # of the benchmark: no attention
ONE_PIECE = 0  # stands for a block that holds the whole context
CLAIM = "The PagedAttention paper's kernel took 20-26 % longer than a contiguous one (7.1)."

Cells = dict[tuple[str, int], float]


def attention_tables(rows: Sequence[Row]) -> list[Table]:
    """Nanoseconds per token of context by block size, one table for each mode."""
    tables = []
    for is_prefill, mode in MODES.items():
        cells = _cells(rows, is_prefill)
        sizes = sorted({size for _, size in cells})
        if not sizes:
            continue
        lines = []
        for group in dict.fromkeys(group for group, _ in cells):
            times = [cells.get((group, size)) for size in sizes]
            known = [time for time in times if time is not None]
            texts = ["-" if time is None else f"{1e9 * time:.2f}" for time in times]
            lines.append((group, *texts, f"{max(known) / min(known):.2f}"))
        heads = [f"blocks of {size}" if size else "one piece" for size in sizes]
        tables.append(
            Table(
                title=f"Attention time, ns per token of context, {mode}",
                head=("problem", *heads, "most / least"),
                lines=tuple(lines),
            )
        )
    return tables


def attention_note(rows: Sequence[Row]) -> str | None:
    """What blocks cost over one piece, beside the usual claim; None: it was not timed."""
    percents = []
    for is_prefill in MODES:
        cells = _cells(rows, is_prefill)
        percents += [
            100 * (time / cells[group, ONE_PIECE] - 1)
            for (group, size), time in cells.items()
            if size != ONE_PIECE
            and (group, ONE_PIECE) in cells
            and not group.startswith(YARDSTICKS)
        ]
    if not percents:
        return None
    return (
        f"{CLAIM} Here blocks took {min(percents):+.0f} to {max(percents):+.0f} % of the "
        "time of one piece more, over the block sizes and problems below."
    )


def attention_charts(rows: Sequence[Row]) -> dict[str, tuple[Chart, ...]]:
    """A figure for each mode with several block sizes; of the most tokens, for there the
    time is that of reading and not of starting."""
    figures: dict[str, tuple[Chart, ...]] = {}
    for is_prefill, mode in MODES.items():
        some = [row for row in rows if row["problem"]["is_prefill"] == is_prefill]
        most = max((_tokens(row) for row in some), default=0)
        cells = _cells([row for row in some if _tokens(row) == most], is_prefill)
        series = []
        for group in dict.fromkeys(group for group, _ in cells):
            pairs = sorted(
                (size, time)
                for (g, size), time in cells.items()
                if g == group and size != ONE_PIECE
            )
            if len(pairs) > 1:
                x = tuple(float(size) for size, _ in pairs)
                y = tuple(1e9 * time for _, time in pairs)
                halves = (None,) * len(x)
                series.append(Series(label=group, x=x, y=y, half_widths=halves))
        chart = line_chart(
            series,
            title=f"Attention by block size, {mode}, {most:,} tokens of context",
            x_label="block size (tokens)",
            y_label="time per token of context (ns)",
            x_base=2,
        )
        if chart:
            figures[f"attention_{mode}"] = (chart,)
    return figures


def _tokens(row: Row) -> int:
    return row["problem"]["context"] * row["problem"]["batch"]


def _cells(rows: Sequence[Row], is_prefill: bool) -> Cells:
    """Seconds per token of context, by problem and implementation, and by block size."""
    cells: Cells = {}
    for row in rows:
        problem = row["problem"]
        if problem["is_prefill"] != is_prefill:
            continue
        size = problem["block_size"]
        if size >= problem["context"]:
            size = ONE_PIECE
        what = f"{problem['dtype']}, {problem['batch']} × {problem['context']:,}"
        for name, ms in row["median_ms"].items():
            cells[f"{name}, {what}", size] = ms / 1e3 / _tokens(row)
    return cells

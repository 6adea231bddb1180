"""A picture of the pool over a run: blocks upwards, steps to the right.

matplotlib (the extra `plots`) is loaded when one is drawn.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, UInt8

from paxkv.analysis.event_replay import BlockState, GroupHistory, PoolHistory, Span
from paxkv.analysis.figures import require_matplotlib, save_png
from paxkv.block_pool import NULL_BLOCK

COLOURINGS = ("state", "owner")
MAX_COLUMNS = 2000  # beyond these, steps are left out
MAX_BLOCK_ROWS = 1500  # beyond these, blocks are left out
# Okabe and Ito (2008): told apart with any colour vision
STATE_COLOURS = {
    BlockState.FREE: "#DDDDDD",
    BlockState.CACHED: "#0072B2",
    BlockState.OWNED: "#009E73",
    BlockState.SHARED: "#D55E00",
}
STATE_LABELS = {
    BlockState.FREE: "free",
    BlockState.CACHED: "cached, no owner",
    BlockState.OWNED: "one owner",
    BlockState.SHARED: "shared",
}
SHARED_COLOUR = "#000000"  # where the colour says who the owner is
OWNER_COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#D55E00", "#CC79A7")


def draw_pool(history: PoolHistory, path: Path, *, colour: str = "state") -> None:
    """Writes the picture as PNG, one below the other for each cache group.

    Args:
      colour: what it tells, one of `COLOURINGS`. With "owner", requests whose ids are
        equal modulo the number of colours look the same.

    Raises:
      ImportError: matplotlib is not installed.
      ResultsNotWritten: the file could not be written.
      ValueError: an unknown `colour`.
    """
    if colour not in COLOURINGS:
        raise ValueError(f"{colour=} is unknown; use one of {COLOURINGS}.")
    require_matplotlib(path)
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    colours, labels = _legend(colour)
    steps = shown_steps(history)
    num_groups = len(history.groups)
    figure = Figure(figsize=(10.5, 1.2 + 3.8 * num_groups), dpi=150, layout="constrained")
    panels = figure.subplots(num_groups, 1, sharex=True, squeeze=False)[:, 0]
    for index, (axes, group) in enumerate(zip(panels, history.groups, strict=True)):
        stride = -(-(group.num_blocks - 1) // MAX_BLOCK_ROWS)
        _draw_group(axes, group, steps, stride, colour, ListedColormap(colours))
        rows = "" if stride == 1 else f", every {stride}th shown"
        of_group = f" of cache group {index}" if num_groups > 1 else ""
        axes.set_ylabel(f"block{of_group} (number{rows})")
    columns = "" if len(steps) == len(_all_steps(history)) else f", {len(steps)} shown"
    panels[-1].set_xlabel(f"step of the scheduler (number{columns})")
    figure.legend(
        handles=[Patch(facecolor=c, label=x) for c, x in zip(colours, labels, strict=True)],
        loc="outside right upper",
        frameon=False,
        fontsize=9,
    )
    figure.suptitle("Blocks of the pool at the end of each step", fontsize=10)
    save_png(figure, path)


def shown_steps(history: PoolHistory) -> Sequence[int]:
    """All steps of the run, or `MAX_COLUMNS` of them at equal distances."""
    steps = _all_steps(history)
    if len(steps) <= MAX_COLUMNS:
        return steps
    places = np.linspace(0, len(steps) - 1, MAX_COLUMNS)
    return [steps[int(place)] for place in places]


def colour_indices(
    group: GroupHistory, steps: Sequence[int], colour: str, stride: int = 1
) -> UInt8[np.ndarray, "blocks steps"]:
    """Of blocks 1, 1 + stride, ... at the end of these steps, into `_legend`'s colours."""
    index_of = _state_index if colour == "state" else _owner_index
    blocks = range(NULL_BLOCK + 1, group.num_blocks, stride)
    indices = np.zeros((len(blocks), len(steps)), np.uint8)
    columns = np.asarray(steps)
    for row, block in enumerate(blocks):
        for start, end, span in _columns(group.spans[block], columns):
            indices[row, start:end] = index_of(span)
    return indices


def _all_steps(history: PoolHistory) -> Sequence[int]:
    return range(history.first_step, history.last_step + 1)


def _columns(
    spans: Sequence[Span], steps: Int[np.ndarray, " steps"]
) -> Iterator[tuple[int, int, Span]]:
    """Each span with its columns [start, end)."""
    starts = np.searchsorted(steps, [span.step for span in spans]).tolist()
    yield from zip(starts, [*starts[1:], len(steps)], spans, strict=True)


def _state_index(span: Span) -> int:
    return int(span.state)


def _owner_index(span: Span) -> int:
    """States without exactly one owner come first, then the colours of requests."""
    requests = {request_id for request_id, _ in span.owners}
    if len(requests) > 1:
        return 2
    if requests:
        return 3 + requests.pop() % len(OWNER_COLOURS)
    return int(span.state)


def _legend(colour: str) -> tuple[list[str], list[str]]:
    """Colours and what they say."""
    if colour == "state":
        return [*STATE_COLOURS.values()], [*STATE_LABELS.values()]
    count = len(OWNER_COLOURS)
    ownerless = [BlockState.FREE, BlockState.CACHED]
    colours = [STATE_COLOURS[state] for state in ownerless]
    labels = [STATE_LABELS[state] for state in ownerless]
    return (
        [*colours, SHARED_COLOUR, *OWNER_COLOURS],
        [
            *labels,
            "several requests",
            *(f"requests {i}, {i + count}, {i + 2 * count}, ..." for i in range(count)),
        ],
    )


def _draw_group(
    axes: Any,
    group: GroupHistory,
    steps: Sequence[int],
    stride: int,
    colour: str,
    colour_map: Any,
) -> None:
    indices = colour_indices(group, steps, colour, stride)
    first = NULL_BLOCK + 1
    axes.imshow(
        indices,
        cmap=colour_map,
        vmin=0,
        vmax=colour_map.N - 1,
        aspect="auto",
        origin="lower",
        interpolation="nearest",
        extent=(
            steps[0] - 0.5,
            steps[-1] + 0.5,
            first - 0.5,
            first + len(indices) * stride - 0.5,
        ),
    )
    axes.spines[["top", "right"]].set_visible(False)

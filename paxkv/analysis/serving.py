"""The rows of `experiments.serve`: one per system, and the table that compares them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from paxkv.analysis.latency import SERVED, percentile, summarize_latency
from paxkv.analysis.waste import CLASSES, PAPER_COLUMNS, summarize_waste
from paxkv.results import Row
from paxkv.types import RequestMetrics, StepMetrics

TIMELINE_POINTS = 400  # most points of a row's timeline

Cell = Callable[[Row], str]


def serving_metrics(
    requests: Sequence[RequestMetrics], steps: Sequence[StepMetrics]
) -> dict[str, Any]:
    """All numbers of one system's run, and how its queue went over time."""
    points = min(len(steps), TIMELINE_POINTS)
    picked = np.linspace(0, len(steps) - 1, points).astype(int).tolist()
    return {
        **asdict(summarize_waste(steps)),
        **asdict(summarize_latency(requests)),
        **_per_step(steps),
        **_shared_and_moved(requests, steps),
        "timeline": {
            "time_s": [round(steps[i].now_s, 6) for i in picked],
            "running": [steps[i].num_running for i in picked],
            "waiting": [steps[i].num_waiting for i in picked],
            "duplicate_blocks": [steps[i].num_duplicate_blocks for i in picked],
            "positions": {
                name: [
                    sum(getattr(part, name) for part in steps[i].partitions) for i in picked
                ]
                for name in CLASSES
            },
        },
    }


def _shared_and_moved(
    requests: Sequence[RequestMetrics], steps: Sequence[StepMetrics]
) -> dict[str, float | int]:
    """What requests found of others' K/V, and the blocks that were copied or moved.

    The samples of a request have one prompt, so it counts once.
    """
    read = [one for one in requests if one.reason in SERVED and not one.sample_index]
    num_prompt = sum(one.num_prompt_tokens for one in read)
    num_cached = sum(one.num_cached_tokens for one in read)
    return {
        "num_cached_tokens": num_cached,
        "prefix_hit_percent": 100 * num_cached / num_prompt if num_prompt else math.nan,
        "num_copied_blocks": sum(step.num_copied_blocks for step in steps),
        "num_swapped_out_blocks": sum(step.num_swapped_out_blocks for step in steps),
        "num_swapped_in_blocks": sum(step.num_swapped_in_blocks for step in steps),
        "duplicate_blocks_peak": max(
            (step.num_duplicate_blocks for step in steps), default=0
        ),
    }


def _per_step(steps: Sequence[StepMetrics]) -> dict[str, float | int]:
    """Where a step's time goes, and what the steps computed."""
    host_s = [step.host_s for step in steps]
    device_s = [step.duration_s for step in steps]
    return {
        "host_mean_s": float(np.mean(host_s)) if steps else math.nan,
        "host_p95_s": percentile(host_s, 95.0),
        "device_mean_s": float(np.mean(device_s)) if steps else math.nan,
        "device_p95_s": percentile(device_s, 95.0),
        "num_prefill_tokens": sum(step.num_prefill_tokens for step in steps),
        "num_decode_tokens": sum(step.num_decode_tokens for step in steps),
        "num_preempting_steps": sum(step.num_preempted > 0 for step in steps),
    }


def _number(*path: str, digits: int = 1, scale: float = 1.0, unit: str = "") -> Cell:
    """A cell that shows one metric; a dash where it is nan."""

    def cell(row: Row) -> str:
        value = row["metrics"]
        for key in path:
            value = value[key]
        if value is None or math.isnan(value):
            return "-"
        return f"{value * scale:,.{digits}f}{unit}"

    return cell


def _recall(row: Row) -> str:
    right, answered = row["metrics"]["recall_right"], row["metrics"]["recall_answered"]
    return f"{100 * right / answered:.2f}" if answered else "-"


def _queue_percent(row: Row) -> str:
    queue, steps = row["metrics"]["num_queue_steps"], row["metrics"]["num_steps"]
    return f"{100 * queue / steps:.0f}" if steps else "-"


_PAPER_LABELS = {
    "token_states": "token states",
    "reservation": "reservation",
    "internal": "internal fragm.",
    "external_and_others": "external & others",
}

# (title of a block, its lines); a line is a label and the cell below each system
SERVE_LINES: tuple[tuple[str, tuple[tuple[str, Cell], ...]], ...] = (
    (
        "requests",
        (
            ("running, mean", _number("running_mean")),
            ("running, peak", _number("running_peak", digits=0)),
            ("running, mean with a queue", _number("capacity")),
            ("steps", _number("num_steps", digits=0)),
            ("steps with a queue, %", _queue_percent),
            ("finished", _number("num_finished", digits=0)),
            ("rejected", _number("num_rejected", digits=0)),
            ("preemptions", _number("num_preemptions", digits=0)),
            ("tokens recomputed", _number("num_recomputed_tokens", digits=0)),
        ),
    ),
    (
        "% of the pool, mean with a queue",
        (
            *(
                (name.replace("_", " "), _number("partition_percent", name))
                for name in CLASSES
            ),
            ("(free, but unusable)", _number("unusable_free_percent")),
        ),
    ),
    (
        "the paper's columns, %",
        tuple(
            (_PAPER_LABELS[name], _number("paper_percent", name)) for name in PAPER_COLUMNS
        ),
    ),
    (
        "cost and speed",
        (
            ("block tables, KiB", _number("table_bytes_peak", scale=2**-10)),
            ("output tokens/s", _number("throughput_tokens_per_s", digits=0)),
            ("host, ms a step", _number("host_mean_s", digits=2, scale=1e3)),
            ("pack, run, fetch, ms a step", _number("device_mean_s", digits=2, scale=1e3)),
            ("queueing p50, s", _number("queue_p50_s", digits=2)),
            ("queueing p95, s", _number("queue_p95_s", digits=2)),
            ("TTFT p50, s", _number("ttft_p50_s", digits=2)),
            ("TTFT p95, s", _number("ttft_p95_s", digits=2)),
            ("TPOT p50, ms", _number("tpot_p50_s", scale=1e3)),
            ("TPOT p95, ms", _number("tpot_p95_s", scale=1e3)),
            ("compiled programs", _number("num_programs", digits=0)),
            ("compile time, s", _number("compile_s")),
        ),
    ),
    (
        "correctness",
        (
            ("recall, % of keys", _recall),
            ("keys answered", _number("recall_answered", digits=0)),
        ),
    ),
)
# below a row's requests, where K/V is shared or moved
SHARING_LINES: tuple[str, tuple[tuple[str, Cell], ...]] = (
    "shared and moved",
    (
        ("prompt tokens found, %", _number("prefix_hit_percent")),
        ("blocks copied", _number("num_copied_blocks", digits=0)),
        ("blocks swapped out", _number("num_swapped_out_blocks", digits=0)),
        ("blocks swapped in", _number("num_swapped_in_blocks", digits=0)),
        ("duplicate blocks, peak", _number("duplicate_blocks_peak", digits=0)),
    ),
)
_SHARING_COUNTS = (
    "num_cached_tokens",
    "num_copied_blocks",
    "num_swapped_out_blocks",
    "num_swapped_in_blocks",
    "duplicate_blocks_peak",
)


def serve_table(rows: Sequence[Row], *, with_sharing: bool = False) -> str:
    """Metrics down, systems across; fits 80 columns with four systems.

    Args:
      with_sharing: shows what was shared and moved even where nothing was.
    """
    if any(row["metrics"][name] for row in rows for name in _SHARING_COUNTS):
        with_sharing = True
    requests, *others = SERVE_LINES
    shown = (requests, *([SHARING_LINES] if with_sharing else []), *others)
    names = [row["system"].split("_", 1) for row in rows]
    head = [[""] + [name[0] if len(name) > 1 else "" for name in names]]
    head += [[""] + [name[-1] for name in names]]
    body: list[list[str]] = []
    for title, lines in shown:
        body.append([title])
        body.extend([f"  {label}", *(cell(row) for row in rows)] for label, cell in lines)
    return _aligned(head, body)


def _aligned(head: list[list[str]], body: list[list[str]]) -> str:
    """Labels to the left, cells to the right; a line of one entry is a title."""
    full = [line for line in head + body if len(line) > 1]
    label_width = max(len(line[0]) for line in full)
    widths = [max(len(line[i]) for line in full) for i in range(1, len(head[0]))]

    def text(line: list[str]) -> str:
        cells = (f"{c:>{w}}" for c, w in zip(line[1:], widths, strict=True))
        return "  ".join((f"{line[0]:<{label_width}}", *cells))

    rule = "-" * len(text(head[0]))
    lines = [text(line) for line in head] + [rule]
    lines += [text(line) if len(line) > 1 else line[0] for line in body]
    return "\n".join([*lines, rule])

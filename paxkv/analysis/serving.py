"""The rows of `experiments.serve`: one per system, and the table that compares them."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from paxkv.analysis.latency import SERVED, LatencyTotals, Values
from paxkv.analysis.timeline import Timeline
from paxkv.analysis.waste import CLASSES, PAPER_COLUMNS, WasteTotals
from paxkv.results import Row
from paxkv.types import RequestMetrics, StepMetrics

_SUMMED = (  # over steps
    "num_prefill_tokens",
    "num_decode_tokens",
    "num_copied_blocks",
    "num_swapped_out_blocks",
    "num_swapped_in_blocks",
)

Cell = Callable[[Row], str]


class ServingTotals:
    """Takes in a run as it goes, in memory that does not grow with its steps."""

    def __init__(self):
        self.waste = WasteTotals()
        self.latency = LatencyTotals()
        self.timeline = Timeline()
        self.host = Values()
        self.device = Values()
        self._steps: Counter[str] = Counter()
        self._duplicates_peak = 0
        self._num_prompt_tokens = 0
        self._num_cached_tokens = 0

    def add_step(self, step: StepMetrics, *, on_timeline: bool = True) -> None:
        """`on_timeline`: the timeline is of one engine, the rest of all."""
        self.waste.add(step)
        if on_timeline:
            self.timeline.add(step)
        self.host.add(step.host_s)
        self.device.add(step.duration_s)
        steps = self._steps
        for name in _SUMMED:
            steps[name] += getattr(step, name)
        steps["num_preempting_steps"] += step.num_preempted > 0
        self._duplicates_peak = max(self._duplicates_peak, step.num_duplicate_blocks)

    def add_request(self, request: RequestMetrics) -> None:
        self.latency.add(request)
        # the samples of a request have one prompt, so it counts once
        if request.reason in SERVED and not request.sample_index:
            self._num_prompt_tokens += request.num_prompt_tokens
            self._num_cached_tokens += request.num_cached_tokens

    def metrics(self) -> dict[str, Any]:
        """All numbers of the run, and how its queue went over time."""
        hit = self._num_cached_tokens / max(self._num_prompt_tokens, 1)
        return {
            **asdict(self.waste.summary()),
            **asdict(self.latency.summary()),
            "host_mean_s": self.host.mean,
            "host_p95_s": self.host.percentile(95.0),
            "device_mean_s": self.device.mean,
            "device_p95_s": self.device.percentile(95.0),
            **{name: self._steps[name] for name in (*_SUMMED, "num_preempting_steps")},
            "num_cached_tokens": self._num_cached_tokens,
            "prefix_hit_percent": 100 * hit if self._num_prompt_tokens else math.nan,
            "duplicate_blocks_peak": self._duplicates_peak,
            "timeline": self.timeline.columns(),
        }


def serving_metrics(
    requests: Iterable[RequestMetrics], steps: Iterable[StepMetrics]
) -> dict[str, Any]:
    """All numbers of one system's run, and how its queue went over time."""
    totals = ServingTotals()
    for step in steps:
        totals.add_step(step)
    for request in requests:
        totals.add_request(request)
    return totals.metrics()


def number(*path: str, digits: int = 1, scale: float = 1.0, unit: str = "") -> Cell:
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
            ("running, mean", number("running_mean")),
            ("running, peak", number("running_peak", digits=0)),
            ("running, mean with a queue", number("capacity")),
            ("steps", number("num_steps", digits=0)),
            ("steps with a queue, %", _queue_percent),
            ("finished", number("num_finished", digits=0)),
            ("rejected", number("num_rejected", digits=0)),
            ("preemptions", number("num_preemptions", digits=0)),
            ("tokens recomputed", number("num_recomputed_tokens", digits=0)),
        ),
    ),
    (
        "% of the pool, mean with a queue",
        (
            *(
                (name.replace("_", " "), number("partition_percent", name))
                for name in CLASSES
            ),
            ("(free, but unusable)", number("unusable_free_percent")),
        ),
    ),
    (
        "the paper's columns, %",
        tuple(
            (_PAPER_LABELS[name], number("paper_percent", name)) for name in PAPER_COLUMNS
        ),
    ),
    (
        "cost and speed",
        (
            ("block tables, KiB", number("table_bytes_peak", scale=2**-10)),
            ("output tokens/s", number("throughput_tokens_per_s", digits=0)),
            ("host, ms a step", number("host_mean_s", digits=2, scale=1e3)),
            ("pack, run, fetch, ms a step", number("device_mean_s", digits=2, scale=1e3)),
            ("queueing p50, s", number("queue_p50_s", digits=2)),
            ("queueing p95, s", number("queue_p95_s", digits=2)),
            ("TTFT p50, s", number("ttft_p50_s", digits=2)),
            ("TTFT p95, s", number("ttft_p95_s", digits=2)),
            ("TPOT p50, ms", number("tpot_p50_s", scale=1e3)),
            ("TPOT p95, ms", number("tpot_p95_s", scale=1e3)),
            ("compiled programs", number("num_programs", digits=0)),
            ("compile time, s", number("compile_s")),
        ),
    ),
    (
        "correctness",
        (
            ("recall, % of keys", _recall),
            ("keys answered", number("recall_answered", digits=0)),
        ),
    ),
)
# below a row's requests, where K/V is shared or moved
SHARING_LINES: tuple[tuple[str, Cell], ...] = (
    ("prompt tokens found, %", number("prefix_hit_percent")),
    ("blocks copied", number("num_copied_blocks", digits=0)),
    ("blocks swapped out", number("num_swapped_out_blocks", digits=0)),
    ("blocks swapped in", number("num_swapped_in_blocks", digits=0)),
    ("duplicate blocks, peak", number("duplicate_blocks_peak", digits=0)),
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
    shown = (
        requests,
        *([("shared and moved", SHARING_LINES)] if with_sharing else []),
        *others,
    )
    names = [row["system"].split("_", 1) for row in rows]
    head = [[""] + [name[0] if len(name) > 1 else "" for name in names]]
    head += [[""] + [name[-1] for name in names]]
    body: list[list[str]] = []
    for title, lines in shown:
        body.append([title])
        body.extend([f"  {label}", *(cell(row) for row in rows)] for label, cell in lines)
    return aligned(head, body)


def aligned(head: list[list[str]], body: list[list[str]]) -> str:
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

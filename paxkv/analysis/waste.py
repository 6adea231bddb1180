"""Where the pool's positions went, from `StepMetrics`.

Percentages are means over the steps in which requests wait: only then does a position
that holds nothing cost a request its place. The four columns of the PagedAttention
paper (Kwon et al. 2023, figure 2) are derived from the finer classes; what sharing saves
(figure 15) is over all steps in which sequences hold blocks.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from paxkv.types import StepMetrics

CLASSES = (
    "token_states",
    "tail",
    "reserved",
    "internal",
    "rounding",
    "cached",
    "free",
)
HELD = ("token_states", "tail", "reserved", "internal", "rounding")
_COUNTED = (*CLASSES, "unusable_free")  # those of HELD come first
_counted = attrgetter(*_COUNTED)
# column of the paper: the classes that it is the sum of
PAPER_COLUMNS = {
    "token_states": ("token_states",),
    "reservation": ("reserved",),
    "internal": ("tail", "internal"),
    "external_and_others": ("rounding", "cached", "free"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WasteSummary:
    """The pool over a run. Values "with a queue" are means over steps in which requests
    wait, and nan if there was no such step."""

    num_positions: int  # usable ones, of all cache groups
    num_steps: int
    num_queue_steps: int  # steps in which requests wait
    running_mean: float
    running_peak: int
    capacity: float  # running requests, with a queue
    partition_percent: dict[str, float]  # by class, with a queue; they sum to 100
    unusable_free_percent: float  # part of `free`: no run of it serves the queue's head
    external_percent: float  # rounding + unusable free
    paper_percent: dict[str, float]  # the paper's four columns, with a queue
    held_per_request: float  # positions held per running request, with a queue
    tail_per_request: float  # of these in the rest of a last block
    # blocks that sharing saves: 100·(1 - 1/mean of logical over physical)
    sharing_saved_percent: float
    table_bytes_mean: float
    table_bytes_peak: int


class WasteTotals:
    """Takes in step after step, and keeps sums only."""

    def __init__(self):
        self._num_positions = 0
        self._num_steps = 0
        self._running = 0  # summed over steps, as all below
        self._running_peak = 0
        self._table_bytes = 0
        self._table_bytes_peak = 0
        self._num_holding_steps = 0
        self._logical_over_physical = 0.0  # summed over these
        self._num_queue_steps = 0  # the sums below are over these
        self._queue_running = 0
        self._positions = [0] * len(_COUNTED)
        self._num_occupied = 0
        self._held_per_request = 0.0
        self._tail_per_request = 0.0

    def add(self, step: StepMetrics) -> None:
        if not self._num_steps:
            self._num_positions = sum(part.total for part in step.partitions)
        running = step.num_running
        self._num_steps += 1
        self._running += running
        self._running_peak = max(self._running_peak, running)
        self._table_bytes += step.table_bytes
        self._table_bytes_peak = max(self._table_bytes_peak, step.table_bytes)
        if logical := sum(part.logical for part in step.partitions):
            idle = sum(part.cached + part.free for part in step.partitions)
            self._num_holding_steps += 1
            self._logical_over_physical += logical / (self._num_positions - idle)
        if step.num_waiting == 0:
            return
        self._num_queue_steps += 1
        self._queue_running += running
        counts = [_counted(part) for part in step.partitions]
        positions = [sum(column) for column in zip(*counts, strict=True)]
        self._positions = [a + b for a, b in zip(self._positions, positions, strict=True)]
        if running > 0:
            self._num_occupied += 1
            self._held_per_request += sum(positions[: len(HELD)]) / running
            self._tail_per_request += positions[_COUNTED.index("tail")] / running

    def summary(self) -> WasteSummary:
        """Nan and 0 if there was no step, or none with a queue."""
        percent = {
            name: _ratio(count * 100 / max(self._num_positions, 1), self._num_queue_steps)
            for name, count in zip(_COUNTED, self._positions, strict=True)
        }
        return WasteSummary(
            num_positions=self._num_positions,
            num_steps=self._num_steps,
            num_queue_steps=self._num_queue_steps,
            running_mean=_ratio(self._running, self._num_steps),
            running_peak=self._running_peak,
            capacity=_ratio(self._queue_running, self._num_queue_steps),
            partition_percent={name: percent[name] for name in CLASSES},
            unusable_free_percent=percent["unusable_free"],
            external_percent=percent["rounding"] + percent["unusable_free"],
            paper_percent={
                name: sum(percent[part] for part in parts)
                for name, parts in PAPER_COLUMNS.items()
            },
            held_per_request=_ratio(self._held_per_request, self._num_occupied),
            tail_per_request=_ratio(self._tail_per_request, self._num_occupied),
            sharing_saved_percent=100
            - 100 * _ratio(self._num_holding_steps, self._logical_over_physical),
            table_bytes_mean=_ratio(self._table_bytes, self._num_steps),
            table_bytes_peak=self._table_bytes_peak,
        )


def _ratio(total: float | int, count: float | int) -> float:
    return total / count if count else math.nan


def summarize_waste(steps: Iterable[StepMetrics]) -> WasteSummary:
    """Means and peaks over the steps of a run."""
    totals = WasteTotals()
    for step in steps:
        totals.add(step)
    return totals.summary()

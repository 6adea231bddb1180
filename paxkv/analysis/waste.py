"""Where the pool's positions went, from `StepMetrics`.

Percentages are means over the steps in which requests wait: only then does a position
that holds nothing cost a request its place. The four columns of the PagedAttention
paper (Kwon et al. 2023, figure 2) are derived from the finer classes.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from paxkv.types import PoolPartition, StepMetrics

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
    table_bytes_mean: float
    table_bytes_peak: int


def _positions(partitions: tuple[PoolPartition, ...], names: tuple[str, ...]) -> list[int]:
    """Positions of each class, over all cache groups."""
    return [sum(getattr(part, name) for part in partitions) for name in names]


def _mean(values: Float64[np.ndarray, "steps"]) -> float:
    return float(values.mean()) if len(values) else float("nan")


def summarize_waste(steps: Iterable[StepMetrics]) -> WasteSummary:
    """Means and peaks over the steps of a run; nan and 0 if every request was rejected."""
    steps = list(steps)
    names = (*CLASSES, "unusable_free")
    positions = np.asarray([_positions(s.partitions, names) for s in steps], np.float64)
    positions = positions.reshape(len(steps), len(names))
    column = {name: positions[:, index] for index, name in enumerate(names)}
    num_positions = sum(part.total for part in steps[0].partitions) if steps else 0
    running = np.asarray([step.num_running for step in steps], np.float64)
    queue = np.asarray([step.num_waiting > 0 for step in steps], bool)
    percent = {name: _mean(column[name][queue] * 100 / num_positions) for name in names}
    occupied = queue & (running > 0)
    held = np.sum([column[name] for name in HELD], axis=0)
    table_bytes = np.asarray([step.table_bytes for step in steps], np.float64)
    return WasteSummary(
        num_positions=num_positions,
        num_steps=len(steps),
        num_queue_steps=int(queue.sum()),
        running_mean=_mean(running),
        running_peak=int(running.max(initial=0)),
        capacity=_mean(running[queue]),
        partition_percent={name: percent[name] for name in CLASSES},
        unusable_free_percent=percent["unusable_free"],
        external_percent=percent["rounding"] + percent["unusable_free"],
        paper_percent={
            name: sum(percent[part] for part in parts)
            for name, parts in PAPER_COLUMNS.items()
        },
        held_per_request=_mean(held[occupied] / running[occupied]),
        tail_per_request=_mean(column["tail"][occupied] / running[occupied]),
        table_bytes_mean=_mean(table_bytes),
        table_bytes_peak=int(table_bytes.max(initial=0)),
    )

"""Host speed: medians of replayed streams, and the goals that they are held to.

A median is over steps, of the time per operation of one kind in a step: per step for the
scheduler's kinds, per request for the manager's. So a step that the machine interrupts
counts no more than any other.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paxkv.host_stream import RecordedStep, Stream

OURS, PEER = "paxkv", "vllm"
STEP_KINDS = ("plan", "pack", "commit", "whole")
# What a stream is made of; also timed: make, look_up. The peer's decode and admit put
# blocks into the cache at once, where ours register and insert them afterwards.
MANAGER_KINDS = ("decode", "register", "admit", "insert", "free")

STEP_LIMITS_US = {128: 300.0, 1024: 2000.0}  # by running requests
DECODE_LIMIT_US = 0.5  # per running request
LOOK_UP_LIMIT_US = 15.0  # of a prompt of 500 tokens
ALLOCATE_FREE_LIMIT_US = 15.0
POOL_LIMIT = 1.1  # of the slowest pool over the fastest
STEP_RATIO_LIMIT = 1 / 3  # of ours over vLLM's
MANAGER_RATIO_LIMIT = 1 / 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A number of ours beside the peer's. `limit` is of ours, `ratio_limit` of ours over
    the peer's; None: no goal."""

    name: str
    unit: str
    ours: float
    peer: float | None = None
    limit: float | None = None
    ratio_limit: float | None = None

    @property
    def ratio(self) -> float | None:
        return None if self.peer is None else self.ours / self.peer

    @property
    def met(self) -> bool | None:
        """Whether all goals that could be checked are met; None: there were none."""
        checks = []
        if self.limit is not None:
            checks.append(self.ours <= self.limit)
        if self.ratio_limit is not None and self.ratio is not None:
            checks.append(self.ratio <= self.ratio_limit)
        return all(checks) if checks else None

    def row(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio, "met": self.met}


def operations(step: RecordedStep, kind: str) -> int:
    """How many operations of a kind a step asks for."""
    if kind in STEP_KINDS:
        return 1
    if kind in ("decode", "register"):
        return step.num_running - len(step.admitted)
    return len(step.finished if kind == "free" else step.admitted)


def medians_us(stream: Stream, seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Per operation of each kind, over the steps that count and have any."""
    steps = stream.steps[stream.num_warm :]
    medians = {}
    for kind, values in seconds.items():
        counted = zip(steps, values, strict=True)
        each = [took / n for step, took in counted if (n := operations(step, kind))]
        if each:
            medians[kind] = 1e6 * statistics.median(each)
    return medians


def step_measure(
    name: str,
    medians: Mapping[str, Mapping[str, float]],
    *,
    limit: float | None = None,
    ratio_limit: float | None = None,
) -> Measure:
    """A whole step; ours has packing in it, the peer's has not."""
    return Measure(
        name=name,
        unit="µs a step",
        ours=medians[OURS]["whole"],
        peer=medians[PEER]["whole"] if PEER in medians else None,
        limit=limit,
        ratio_limit=ratio_limit,
    )


def manager_measure(
    name: str,
    medians: Mapping[str, Mapping[str, float]],
    kinds: Sequence[str],
    *,
    limit: float | None = None,
    with_peer: bool = True,
) -> Measure:
    """The sum of some kinds, each for one request; a side may lack some of them."""
    sums = {
        side: sum((of.get(kind, 0.0) for kind in kinds), 0.0)
        for side, of in medians.items()
    }
    peer = sums.get(PEER) if with_peer else None
    return Measure(name=name, unit="µs", ours=sums[OURS], peer=peer, limit=limit)


def stream_measure(
    name: str, stream: Stream, medians: Mapping[str, Mapping[str, float]]
) -> Measure:
    """All operations of the stream's steps that count, each at its median."""
    steps = stream.steps[stream.num_warm :]
    counts = {kind: sum(operations(s, kind) for s in steps) for kind in MANAGER_KINDS}
    sums = {
        side: sum(n * of.get(kind, 0.0) for kind, n in counts.items()) / len(steps)
        for side, of in medians.items()
    }
    return Measure(
        name=name,
        unit="µs a step",
        ours=sums[OURS],
        peer=sums.get(PEER),
        ratio_limit=MANAGER_RATIO_LIMIT,
    )


def pool_measure(name: str, whole_us: Mapping[int, float]) -> Measure:
    """Of steps that differ only in the size of the pool: the slowest over the fastest."""
    ratio = max(whole_us.values()) / min(whole_us.values())
    return Measure(name=name, unit="slowest / fastest", ours=ratio, limit=POOL_LIMIT)


def table(measures: Sequence[Measure]) -> str:
    """One line a measure: the numbers, the goals, and whether they are met."""
    cells = [("", "ours", "vLLM", "ours/vLLM", "goal", ""), *map(_cells, measures)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        f"{name:<{widths[0]}}  {ours:>{widths[1]}}  {peer:>{widths[2]}}  "
        f"{ratio:>{widths[3]}}  {goal:<{widths[4]}}  {verdict}".rstrip()
        for name, ours, peer, ratio, goal, verdict in cells
    )


def _cells(measure: Measure) -> tuple[str, ...]:
    goals = []
    if measure.limit is not None:
        goals.append(f"≤ {measure.limit:g}")
    if measure.ratio_limit is not None:
        goals.append(f"≤ {measure.ratio_limit:.2g} of vLLM's")
    verdict = {None: "", True: "met", False: "not met"}[measure.met]
    if measure.ratio_limit is not None and measure.ratio is None:
        verdict = "no peer"
    return (
        f"{measure.name}, {measure.unit}",
        f"{measure.ours:.2f}",
        "-" if measure.peer is None else f"{measure.peer:.2f}",
        "-" if measure.ratio is None else f"{measure.ratio:.2f}",
        ", ".join(goals),
        verdict,
    )

"""How a run went over time, in a bounded number of points."""

from collections.abc import Mapping
from typing import Any

from paxkv.analysis.waste import CLASSES
from paxkv.types import StepMetrics

TIMELINE_POINTS = 400  # most points that are told


class Timeline:
    """Every step at first; each time they become too many, every second one of them."""

    def __init__(self):
        self._steps: list[StepMetrics] = []
        self._stride = 1  # one step of so many is kept
        self._num_seen = 0

    def add(self, step: StepMetrics) -> None:
        if self._num_seen % self._stride == 0:
            if len(self._steps) == TIMELINE_POINTS:
                self._steps = self._steps[::2]
                self._stride *= 2
            if self._num_seen % self._stride == 0:
                self._steps.append(step)
        self._num_seen += 1

    def columns(self) -> Mapping[str, Any]:
        """Time, requests and positions of the pool by class, over all cache groups."""
        steps = self._steps
        return {
            "time_s": [round(step.now_s, 6) for step in steps],
            "running": [step.num_running for step in steps],
            "waiting": [step.num_waiting for step in steps],
            "duplicate_blocks": [step.num_duplicate_blocks for step in steps],
            "positions": {
                name: [sum(getattr(part, name) for part in s.partitions) for s in steps]
                for name in CLASSES
            },
        }

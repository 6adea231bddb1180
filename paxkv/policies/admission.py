"""How many blocks must stay free when a request is admitted.

To add a policy, write a class with these three methods and name it in a config by its
import path.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from paxkv.types import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A running request, or the one to be admitted, in blocks of the first group."""

    request: Request
    num_blocks: int  # held, or needed for the tokens known so far
    final_blocks: int  # with max_tokens generated, one table per sequence


@runtime_checkable
class AdmissionPolicy(Protocol):
    """One object per scheduler; may learn from what happens."""

    def keep_free(self, running: Sequence[Demand], coming: Demand) -> int:
        """Blocks to spare beside those for the known tokens of `coming`."""

    def step_planned(self) -> None:
        """A step was planned without preempting anybody."""

    def preempted(self, running: Sequence[Demand]) -> None:
        """The pool ran full; these are left."""


class Watermark:
    """A fixed share of the pool, once something runs (vLLM; 1 % in the paper)."""

    def __init__(self, num_blocks: int, watermark: float):
        self._num_blocks = int(watermark * num_blocks)

    def keep_free(self, running: Sequence[Demand], coming: Demand) -> int:
        return self._num_blocks if running else 0

    def step_planned(self) -> None:
        pass

    def preempted(self, running: Sequence[Demand]) -> None:
        pass


class Reserve:
    """All that the running requests and the coming one may become: nobody is ever
    preempted for want of blocks (TensorRT-LLM's GUARANTEED_NO_EVICT)."""

    def __init__(self, num_blocks: int, watermark: float):
        pass

    def keep_free(self, running: Sequence[Demand], coming: Demand) -> int:
        if not running:
            return 0
        return sum(one.final_blocks - one.num_blocks for one in (*running, coming))

    def step_planned(self) -> None:
        pass

    def preempted(self, running: Sequence[Demand]) -> None:
        pass


class Optimistic:
    """A share of that, which sinks while all goes well and is set anew by a preemption
    (SGLang's new-token ratio: 0.7 at first, at least 0.098, linear over 600 steps)."""

    def __init__(self, num_blocks: int, watermark: float):
        self.ratio = 0.7
        self._least = self.ratio * 0.14
        self._decay = (self.ratio - self._least) / 600

    def keep_free(self, running: Sequence[Demand], coming: Demand) -> int:
        future = sum(one.final_blocks - one.num_blocks for one in (*running, coming))
        return math.ceil(self.ratio * future) if running else 0

    def step_planned(self) -> None:
        self.ratio = max(self.ratio - self._decay, self._least)

    def preempted(self, running: Sequence[Demand]) -> None:
        """Decoded so far, and 20 tokens more each, of all that may be decoded."""
        decoded = sum(len(one.request.output_ids) for one in running)
        most = sum(one.request.sampling.max_tokens for one in running)
        if running:
            self.ratio = min(1.0, (decoded + 20 * len(running)) / (most + 1))


ADMISSION_POLICIES: Mapping[str, Callable[[int, float], AdmissionPolicy]] = {
    "watermark": Watermark,
    "reserve": Reserve,
    "optimistic": Optimistic,
}

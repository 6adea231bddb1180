"""Runs plans by a cost model: the clock moves on, and the tokens mean nothing."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Int32

from paxkv.simulation.virtual_clock import VirtualClock
from paxkv.simulation.work import CostModel, StepSeconds, step_work
from paxkv.types import Plan, StepResult

Heard = Callable[[Plan, StepSeconds, float], object]  # and when the step ends


class SimulatedExecutor:
    """An `Executor` without a device."""

    def __init__(
        self,
        cost: CostModel,
        clock: VirtualClock,
        *,
        block_size: int,
        windows: Sequence[int | None] = (None,),
        num_rows: int,
        on_step: Heard = lambda plan, seconds, end_s: None,
    ):
        """
        Args:
          cost: of each step.
          clock: of the engine; each step moves it on.
          windows: per cache group, tokens that a position sees; None: all.
          num_rows: of the engine's tables.
          on_step: hears of each plan before it is committed.
        """
        self.cost = cost
        self.clock = clock
        self.block_size = block_size
        self.windows = tuple(windows)
        self.on_step = on_step
        self.last_plan: Plan | None = None
        # by row: the samples of a request have different tokens, all others have zeros
        self._token_ids = np.zeros(num_rows, np.int32)

    def run(self, plan: Plan) -> StepResult:
        seconds = self.cost.seconds(step_work(plan, self.block_size, self.windows))
        total_s, self.last_plan = seconds.total_s, plan
        for start in plan.started:
            self._token_ids[start.row] = start.sample_index
        self.clock.advance(total_s)
        self.on_step(plan, seconds, self.clock())
        return StepResult(
            tokens=self.tokens(plan.rows),
            duration_s=total_s - seconds.host_s,
        )

    def tokens(self, rows: Int32[np.ndarray, "S"]) -> Int32[np.ndarray, "S"]:
        """What the sequences of these rows sample, whatever they have read."""
        return self._token_ids[rows]

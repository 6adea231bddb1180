"""Runs plans by a cost model: the clock moves on, and the tokens mean nothing."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Int32

from paxkv.simulation.virtual_clock import VirtualClock
from paxkv.simulation.work import CostModel, StepSeconds, step_work
from paxkv.types import Plan, StepResult, TokenLogprobs

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
        self._num_candidates = np.zeros(num_rows, np.int32)  # of beams

    def run(self, plan: Plan) -> StepResult:
        seconds = self.cost.seconds(step_work(plan, self.block_size, self.windows))
        total_s, self.last_plan = seconds.total_s, plan
        for start in plan.started:
            self._token_ids[start.row] = start.sample_index
            self._num_candidates[start.row] = start.num_top or 0
        self.clock.advance(total_s)
        self.on_step(plan, seconds, self.clock())
        return StepResult(
            tokens=self.tokens(plan.rows),
            duration_s=total_s - seconds.host_s,
            logprobs=self._candidates(plan),
        )

    def tokens(self, rows: Int32[np.ndarray, "S"]) -> Int32[np.ndarray, "S"]:
        """What the sequences of these rows sample, whatever they have read."""
        return self._token_ids[rows]

    def _candidates(self, plan: Plan) -> tuple[TokenLogprobs | None, ...]:
        """Of beams, the tokens that may follow. How likely they are is drawn: it decides
        which beams go on, and so which blocks are shared. (): there are no beams."""
        counts = np.where(plan.samples, self._num_candidates[plan.rows], 0)
        if not counts.any():
            return ()
        found: list[TokenLogprobs | None] = []
        for row, count in zip(plan.rows.tolist(), counts.tolist(), strict=True):
            if not count:
                found.append(None)
                continue
            rng = np.random.default_rng((plan.step, row))
            logprobs = tuple((-np.cumsum(rng.uniform(0.01, 1.0, count))).tolist())
            found.append(
                TokenLogprobs(
                    token_id=0,
                    logprob=logprobs[0],
                    rank=1,
                    top_ids=tuple(range(count)),
                    top_logprobs=logprobs,
                )
            )
        return tuple(found)

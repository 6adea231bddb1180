"""Several decode steps of a simulated engine at once, where nothing happens between."""

from collections.abc import Sequence
from dataclasses import replace

from paxkv.scheduler import Scheduler
from paxkv.simulation.simulated_executor import SimulatedExecutor
from paxkv.simulation.work import StepSeconds, StepWork
from paxkv.types import Plan, RequestUpdate, StepMetrics


class QuietSteps:
    """Goes on after a step of an engine, to the same events, tokens, times and metrics as
    step by step."""

    def __init__(self, scheduler: Scheduler, executor: SimulatedExecutor):
        self._scheduler = scheduler
        self._executor = executor

    def __call__(
        self, before: StepMetrics, until_s: float | None
    ) -> tuple[Sequence[StepMetrics], Sequence[RequestUpdate]]:
        """All steps that begin before `until_s` (None: whenever) and decide nothing.

        Args:
          before: of the step that was just committed.
        """
        executor, clock = self._executor, self._executor.clock
        plan = executor.last_plan
        count = 0 if plan is None else self._scheduler.repeating.count(plan)
        if plan is None or not count or any(executor.windows):
            return (), ()
        work, began_s = next_decode_work(plan, executor.block_size), clock()
        steps: list[tuple[float, float, float, float]] = []
        spent = StepSeconds()
        while len(steps) < count:
            now_s = clock()
            if until_s is not None and now_s >= until_s:
                break
            seconds = executor.cost.seconds(work)
            clock.advance(seconds.total_s)
            duration_s = seconds.total_s - seconds.host_s
            host_s = max(clock() - now_s - duration_s, 0.0)
            steps.append((now_s, clock(), duration_s, host_s))
            spent = spent.plus(seconds)
            work = one_token_on(work)
        if not steps:
            return (), ()
        quiet = replace(plan, now_s=began_s, started=(), moves=(), num_prefill_tokens=0)
        executor.on_step(quiet, spent, clock())
        tokens = executor.tokens(plan.rows)
        return self._scheduler.repeating.commit(before, steps, tokens)


def next_decode_work(plan: Plan, block_size: int) -> StepWork:
    """Of the step that gives all sequences of a plan their next token."""
    num_seqs, ends = len(plan.rows), plan.starts + plan.lengths + 1
    context = int(ends.sum())
    read = int((-(-ends // block_size)).sum()) * block_size
    num_groups = len(plan.partitions)
    return StepWork(
        num_seqs=num_seqs,
        num_decode_tokens=num_seqs,
        num_prefill_tokens=0,
        decode_context_tokens=(context,) * num_groups,
        decode_read_tokens=(read,) * num_groups,
        prefill_pairs=(0,) * num_groups,
        prefill_context_tokens=(0,) * num_groups,
    )


def one_token_on(work: StepWork) -> StepWork:
    """The decode step after that of `work`, in the same blocks."""
    context = tuple(tokens + work.num_seqs for tokens in work.decode_context_tokens)
    return replace(work, decode_context_tokens=context)

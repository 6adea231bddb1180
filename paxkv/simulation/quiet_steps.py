"""Several decode steps of a simulated engine at once, where nothing happens between."""

from collections.abc import Sequence
from dataclasses import replace

from paxkv.repeating import RepeatedStep
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
        """All steps that begin before `until_s` (None: whenever) and only decode.

        Args:
          before: of the step that was just committed.
        """
        executor, repeating = self._executor, self._scheduler.repeating
        plan, clock = executor.last_plan, executor.clock
        if plan is None or any(executor.windows) or not repeating.may_follow(plan):
            return (), ()
        began_s, tokens = clock(), executor.tokens(plan.rows)
        metrics: list[StepMetrics] = []
        ends_s: list[float] = []
        spent = StepSeconds()
        while until_s is None or clock() < until_s:
            count = repeating.begin(clock())
            if not count:
                break
            steps, seconds = self._run(plan, len(ends_s), count, until_s)
            metrics += repeating.commit(steps, tokens, before.table_bytes)
            ends_s += [step.end_s for step in steps]
            spent = spent.plus(seconds)
        if not ends_s:
            return (), ()
        quiet = replace(plan, now_s=began_s, started=(), moves=(), num_prefill_tokens=0)
        executor.on_step(quiet, spent, clock())
        return metrics, repeating.deliver(ends_s, tokens)

    def _run(
        self, plan: Plan, num_before: int, count: int, until_s: float | None
    ) -> tuple[list[RepeatedStep], StepSeconds]:
        """At most `count` steps in the same blocks, after `num_before` since the plan."""
        executor, clock = self._executor, self._executor.clock
        work = next_decode_work(plan, num_before, executor.block_size)
        steps: list[RepeatedStep] = []
        spent = StepSeconds()
        while len(steps) < count:
            now_s = clock()
            if until_s is not None and now_s >= until_s:
                break
            seconds = executor.cost.seconds(work)
            total_s = seconds.total_s
            clock.advance(total_s)
            end_s, duration_s = clock(), total_s - seconds.host_s
            steps.append(
                RepeatedStep(
                    now_s=now_s,
                    end_s=end_s,
                    duration_s=duration_s,
                    host_s=max(end_s - now_s - duration_s, 0.0),
                )
            )
            spent = spent.plus(seconds)
            work = one_token_on(work)
        return steps, spent


def next_decode_work(plan: Plan, num_before: int, block_size: int) -> StepWork:
    """Of the step that gives all sequences of a plan their next token, after as many as
    `num_before` since."""
    num_seqs, ends = len(plan.rows), plan.starts + plan.lengths + num_before + 1
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
    return StepWork(
        num_seqs=work.num_seqs,
        num_decode_tokens=work.num_decode_tokens,
        num_prefill_tokens=0,
        decode_context_tokens=context,
        decode_read_tokens=work.decode_read_tokens,
        prefill_pairs=work.prefill_pairs,
        prefill_context_tokens=work.prefill_context_tokens,
    )

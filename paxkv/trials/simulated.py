"""A trial over a virtual clock: the engine's own loop, scheduler, caches and policies."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from paxkv.analysis.run_recorder import OnRecord
from paxkv.analysis.time_split import TimeSplit, view_step
from paxkv.engine import Engine
from paxkv.events import Listener
from paxkv.replay import Replay, Replica
from paxkv.scheduler_building import build_scheduler
from paxkv.simulation.cost_models import build_cost_model
from paxkv.simulation.hardware import pool_blocks
from paxkv.simulation.quiet_steps import QuietSteps
from paxkv.simulation.router import ROUTING_POLICIES
from paxkv.simulation.simulated_executor import SimulatedExecutor
from paxkv.simulation.virtual_clock import VirtualClock
from paxkv.simulation.work import StepSeconds
from paxkv.trials.outcome import TrialOutcome
from paxkv.trials.recording import make_recorder, pool_facts, served_metrics
from paxkv.trials.trial_config import TrialConfig
from paxkv.types import Plan, StepMetrics
from paxkv.workloads.drawing import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class _Simulated:
    """A replica, and what hears of its steps."""

    replica: Replica
    split: TimeSplit
    costs: str  # where they are from


def simulate(
    trial: TrialConfig,
    profile: str,
    *,
    listener: Listener | None = None,
    on_ended: Callable[[int], object] = lambda count: None,
    on_record: OnRecord = lambda record: None,
    on_step: Callable[[StepMetrics], object] = lambda metrics: None,
    takes_quiet_steps: bool = True,
    stop_at_s: float | int = math.inf,
) -> TrialOutcome:
    """Serves the trial's workload by a cost profile. Same trial, same outcome, but for
    `wall_s`.

    Args:
      listener: hears of the events of all replicas.
      on_ended: gets the number of requests that ended, step by step.
      on_record: gets each request that ends.
      on_step: gets the metrics of each step.
      takes_quiet_steps: several decode steps at once where nothing happens between; the
        events are the same without.
      stop_at_s: of the virtual clock; requests that are not done by then count nowhere.

    Raises:
      ValueError: the model does not fit the hardware, the workload not the model, or the
        trial needs what only a device has.
    """
    started_s = time.perf_counter()
    # a log of several replicas tells their steps in the order of their clocks
    is_one = trial.router.num_replicas == 1
    takes_quiet_steps = takes_quiet_steps and (listener is None or is_one)
    num_blocks = blocks_per_group(trial)
    seconds = dict.fromkeys(_PARTS, 0.0)
    simulated = [
        _build(trial, profile, num_blocks, seconds, listener, takes_quiet_steps)
        for _ in range(trial.router.num_replicas)
    ]
    workload = Workload(
        trial.workload, max_context=trial.max_context, vocab_size=trial.model.vocab_size
    )
    recorder = make_recorder(trial, [one.split for one in simulated], on_record, on_step)
    replay = Replay(
        [one.replica for one in simulated],
        workload,
        recorder,
        route=ROUTING_POLICIES[trial.router.policy](),
        concurrency=trial.workload.users,
    )
    while not replay.done and replay.now_s < stop_at_s:
        on_ended(replay.advance())
    cache = trial.engine.cache
    return TrialOutcome(
        kind="simulated",
        device=f"{trial.hardware.num_chips} x {trial.hardware.chip}",
        implementation="none",
        profile=profile,
        costs=simulated[0].costs,
        notes=workload.report.notes,
        pool=pool_facts(
            num_blocks,
            cache.block_size,
            sum(trial.model.kv_bytes_per_token(cache.dtype)),
        ),
        metrics={
            **recorder.metrics(),
            **seconds,
            **served_metrics(trial, replay, workload),
            "wall_s": time.perf_counter() - started_s,
        },
    )


def blocks_per_group(trial: TrialConfig) -> tuple[int, ...]:
    """The config's, or what the chips have room for beside the weights."""
    cache, scheduler = trial.engine.cache, trial.engine.scheduler
    num_groups = len(trial.model.group_windows)
    if cache.num_blocks is not None:
        others = cache.num_window_blocks or cache.num_blocks
        return (cache.num_blocks, *[others] * (num_groups - 1))
    return pool_blocks(
        trial.hardware,
        trial.model,
        block_size=cache.block_size,
        kv_dtype=cache.dtype,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_num_seqs=scheduler.max_num_seqs,
        max_context=trial.max_context,
    )


def _build(
    trial: TrialConfig,
    profile: str,
    num_blocks: Sequence[int],
    seconds: dict[str, float],
    listener: Listener | None,
    takes_quiet_steps: bool,
) -> _Simulated:
    engine, shape = trial.engine, trial.model
    if engine.cache.disk_folder is not None:
        raise ValueError(
            f"disk_folder={engine.cache.disk_folder!r} needs bytes, and a simulation has "
            "none; leave it out, or run experiments.serve_trace."
        )
    cost = build_cost_model(
        profile,
        trial.hardware,
        shape,
        block_size=engine.cache.block_size,
        kv_dtype=engine.cache.dtype,
        max_num_seqs=engine.scheduler.max_num_seqs,
        max_num_batched_tokens=engine.scheduler.max_num_batched_tokens,
    )
    windows = shape.group_windows
    scheduler = build_scheduler(
        engine.cache,
        engine.scheduler,
        num_blocks=num_blocks,
        max_context=trial.max_context,
        vocab_size=shape.vocab_size,
        windows=windows,
        check_invariants=engine.check_invariants,
        listener=listener,
    )
    split = TimeSplit(engine.scheduler.max_num_seqs)

    def on_step(plan: Plan, spent: StepSeconds, end_s: float) -> None:
        split.stepped(view_step(plan, end_s), spent)
        for name in _PARTS:
            seconds[name] += getattr(spent, name)

    clock = VirtualClock()
    executor = SimulatedExecutor(
        cost,
        clock,
        block_size=engine.cache.block_size,
        windows=windows,
        num_rows=engine.scheduler.max_num_seqs,
        on_step=on_step,
    )
    replica = Replica(
        engine=Engine(scheduler, executor, clock),
        clock=clock,
        go_on=QuietSteps(scheduler, executor) if takes_quiet_steps else None,
    )
    return _Simulated(replica=replica, split=split, costs=cost.source)


_PARTS = tuple(field.name for field in fields(StepSeconds))

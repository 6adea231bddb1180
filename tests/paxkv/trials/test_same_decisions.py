"""A device and a simulation decide the same, event for event, on the same clock."""

from dataclasses import replace

import pytest

from paxkv.analysis.run_recorder import RunRecorder
from paxkv.analysis.time_split import TimeSplit
from paxkv.building import build_engine
from paxkv.engine import Executor
from paxkv.events import Event, EventKind
from paxkv.models.loading import load_decoder
from paxkv.replay import Replay, Replica
from paxkv.simulation.cost_models import build_cost_model
from paxkv.simulation.virtual_clock import VirtualClock
from paxkv.simulation.work import CostModel, step_work
from paxkv.trials.trial_config import TrialConfig
from paxkv.types import Plan, StepResult
from paxkv.workloads.drawing import Workload
from tests.trials import make_trial, run_trial

SMALL = {
    "cache__num_blocks": 33,
    "cache__dtype": "float32",
    "engine__max_context": 192,
    "scheduler__max_num_seqs": 8,
    "scheduler__max_num_batched_tokens": 64,
    "workload__num_requests": 14,
    "workload__lengths": "lognormal",
    "workload__input_tokens": 50,
    "workload__output_tokens": 20,
    "workload__too_long": "clip",
    "workload__rate_per_s": 400.0,
}


class OnVirtualTime:
    """Really runs steps, and lets the clock pass as a cost model says."""

    def __init__(
        self, executor: Executor, cost: CostModel, clock: VirtualClock, block_size: int
    ):
        self.executor, self.cost = executor, cost
        self.clock, self.block_size = clock, block_size

    def run(self, plan: Plan) -> StepResult:
        seconds = self.cost.seconds(step_work(plan, self.block_size))
        result = self.executor.run(plan)
        self.clock.advance(seconds.total_s)
        return replace(result, duration_s=seconds.total_s - seconds.host_s)


def serve_really(trial: TrialConfig) -> list[Event]:
    events: list[Event] = []
    clock = VirtualClock()
    decoder = load_decoder(trial.engine.model, trial.weights_dtype)
    engine, executor = build_engine(
        trial.engine, decoder, clock=clock, listener=events.append
    )
    cache, scheduler = trial.engine.cache, trial.engine.scheduler
    cost = build_cost_model(
        "calibrated",
        trial.hardware,
        trial.model,
        block_size=cache.block_size,
        kv_dtype=cache.dtype,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
    )
    engine.executor = OnVirtualTime(executor, cost, clock, cache.block_size)
    sessions = Workload(
        trial.workload, max_context=trial.max_context, vocab_size=trial.model.vocab_size
    )
    recorder = RunRecorder([TimeSplit(scheduler.max_num_seqs)], trial.slo)
    replay = Replay([Replica(engine=engine, clock=clock)], sessions, recorder)
    while not replay.done:
        replay.advance()
    return events


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"cache__prefix_caching": True, "workload__structure": "shared_prefix",
         "workload__shared_tokens": 40},
        {"cache__host_blocks": 64, "scheduler__pressure": "preempt_swap"},
        {"cache__allocator": "contiguous_pow2", "cache__prefix_caching": False},
        {"workload__num_samples": 2, "workload__num_requests": 6,
         "cache__prefix_caching": False},  # tokens of real samples may be the same
        {"cache__prefix_caching": True, "workload__structure": "chat",
         "workload__max_turns": 3, "workload__num_requests": 6,
         "workload__input_tokens": 16, "workload__output_tokens": 8},
    ],
    ids=["plain", "prefixes", "swap", "contiguous", "samples", "chat"],
)  # fmt: skip
def test_real_and_simulated_runs_take_the_same_decisions(overrides):
    trial = make_trial("recall,a100_40", **(SMALL | overrides))
    outcome, _, simulated = run_trial(trial)
    real = serve_really(trial)
    assert len(real) == len(simulated)
    for mine, theirs in zip(real, simulated, strict=True):
        assert mine == theirs
    assert sum(event.kind is EventKind.STEP for event in real) > 15
    if "samples" not in overrides:
        assert outcome.metrics["num_finished"] >= 6

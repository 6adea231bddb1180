"""A trial on the device that is here: the same loop, with steps that really run."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from paxkv.analysis.run_recorder import OnRecord, RunRecorder
from paxkv.analysis.time_split import StepView, TimeSplit, view_step
from paxkv.building import build_engine, context_limit
from paxkv.engine import Executor
from paxkv.events import Listener
from paxkv.models.cache_groups import group_windows
from paxkv.models.loading import load_decoder
from paxkv.replay import Replay, Replica, Stopwatch
from paxkv.session_feed import Arrival
from paxkv.simulation.calibration import MIN_STEPS, fit_calibration
from paxkv.simulation.measured_model import MeasuredModel
from paxkv.simulation.step_records import RecordingExecutor, StepRecord
from paxkv.simulation.work import CostModel, StepSeconds
from paxkv.trials.outcome import TrialOutcome
from paxkv.trials.recording import make_recorder, pool_facts, served_metrics
from paxkv.trials.trial_config import TrialConfig
from paxkv.types import Plan, RequestUpdate, StepMetrics, StepResult
from paxkv.workloads.drawing import Workload
from paxkv.workloads.recall_workload import (
    RecallWorkload,
    recall_workload,
    score_recall,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    view: StepView
    record: StepRecord
    metrics: StepMetrics


class _Tape:
    """An `Observer` that keeps all, since the split of steps is known after the run."""

    def __init__(
        self,
        executor: Executor,
        clock: Stopwatch,
        block_size: int,
        windows: Sequence[int | None],
    ):
        self.events: list[tuple[int, Arrival] | _Step | RequestUpdate] = []
        self.outputs: dict[int, list[int]] = {}
        self._recording = RecordingExecutor(executor, block_size, windows)
        self._clock = clock
        self._seen: StepView | None = None

    def run(self, plan: Plan) -> StepResult:
        """As the executor does; looking at the plan counts as the host's time."""
        result = self._recording.run(plan)
        view = view_step(plan, end_s=0.0)
        self._seen = replace(view, end_s=self._clock())  # tokens come just now
        return result

    def arrived(self, request_id: int, arrival: Arrival, replica: int) -> None:
        del replica
        self.events.append((request_id, arrival))
        self.outputs[request_id] = []

    def stepped(self, metrics: StepMetrics, replica: int) -> None:
        del replica
        record = self._recording.record(metrics)
        assert self._seen is not None and record is not None, "no plan was seen"
        self.events.append(_Step(view=self._seen, record=record, metrics=metrics))

    def told(self, update: RequestUpdate, replica: int) -> None:
        del replica
        if update.sample_index == 0:
            self.outputs[update.request_id].extend(update.new_token_ids)
        if update.metrics is not None:
            self.events.append(update)

    @property
    def steps(self) -> list[StepRecord]:
        return [event.record for event in self.events if isinstance(event, _Step)]

    def play(
        self, recorder: RunRecorder, split: TimeSplit, cost: CostModel | None
    ) -> StepSeconds:
        """Tells a recorder all of it, with each step's time split in a model's shares;
        their sums."""
        total = StepSeconds()
        for event in self.events:
            if isinstance(event, _Step):
                seconds = _shares(event.record, cost)
                total = total.plus(replace(seconds, host_s=event.record.host_s))
                split.stepped(event.view, seconds)
                recorder.stepped(event.metrics, 0)
            elif isinstance(event, RequestUpdate):
                recorder.told(event, 0)
            else:
                recorder.arrived(*event, 0)
        return total


def _shares(record: StepRecord, cost: CostModel | None) -> StepSeconds:
    """The executor's time of a step, in the shares of a cost model or else by tokens."""
    if cost is not None:
        expected = replace(cost.seconds(record.work), host_s=0.0)
        if expected.total_s > 0:
            return expected.scaled(record.duration_s / expected.total_s)
    work = record.work
    num_tokens = max(work.num_decode_tokens + work.num_prefill_tokens, 1)
    decode_s = record.duration_s * work.num_decode_tokens / num_tokens
    return StepSeconds(decode_s=decode_s, prefill_s=record.duration_s - decode_s)


def serve(
    trial: TrialConfig,
    *,
    score_keys: bool = False,
    listener: Listener | None = None,
    on_ended: Callable[[int], object] = lambda count: None,
    on_record: OnRecord = lambda record: None,
    on_steps: Callable[[Sequence[StepRecord]], object] = lambda steps: None,
) -> TrialOutcome:
    """Serves the trial's workload with its engine's model. Requests come at their times;
    idle time is skipped.

    Args:
      score_keys: prompts are those of the recall task, and answers are scored.
      listener: hears of events of blocks and requests, which slows the run.
      on_steps: gets all steps after the run, for a calibration.

    Raises:
      ValueError: a limit of the config, the model, the workload or the device is violated.
    """
    if trial.router.num_replicas > 1:
        raise ValueError(
            f"router.num_replicas={trial.router.num_replicas}: a real run has one engine; "
            "use 1, or simulate."
        )
    decoder = load_decoder(trial.engine.model, trial.weights_dtype)
    max_context = context_limit(trial.engine, decoder.config.max_context)
    recall = recall_workload(trial.workload, max_context) if score_keys else None
    workload = Workload(
        trial.workload, max_context=max_context, vocab_size=decoder.config.vocab_size
    )
    clock = Stopwatch()
    engine, executor = build_engine(trial.engine, decoder, clock=clock, listener=listener)
    scheduler = engine.scheduler
    compile_s = executor.warm_up(scheduler.tables)
    plan = executor.cache_plan
    tape = _Tape(executor, clock, plan.block_size, group_windows(decoder.config))
    engine.executor = tape
    started_s = time.perf_counter()
    replay = Replay(
        [Replica(engine=engine, clock=clock)],
        workload if recall is None else recall.sessions,
        tape,
        concurrency=trial.workload.users,
    )
    while not replay.done:
        on_ended(replay.advance())
    wall_s = time.perf_counter() - started_s
    on_steps(tape.steps)
    split = TimeSplit(trial.engine.scheduler.max_num_seqs)
    recorder = make_recorder(trial, [split], on_record)
    cost = _cost_of(trial, tape.steps, executor.device_name)
    seconds = tape.play(recorder, split, cost)
    scored = {} if recall is None else _scores(recall, tape)
    return TrialOutcome(
        kind="measured",
        device=executor.device_name,
        implementation=executor.options.attention.implementation,
        profile="measured",
        costs="measured; shares of a step "
        + ("by tokens" if cost is None else "fitted to the run's own steps"),
        notes=workload.report.notes,
        pool=pool_facts(
            plan.blocks_per_group, plan.block_size, round(plan.bytes_per_token)
        ),
        metrics={
            **recorder.metrics(),
            **asdict(seconds),
            **scored,
            **served_metrics(trial, replay, workload),
            "compile_s": compile_s,
            "num_programs": executor.num_programs,
            "wall_s": wall_s,
        },
    )


def _scores(recall: RecallWorkload, tape: _Tape) -> dict[str, int]:
    """How many keys were answered, and how many right."""
    outputs = [tape.outputs[index] for index in range(len(recall.prompts))]
    right, answered = score_recall(recall.prompts, outputs)
    return {"recall_right": right, "recall_answered": answered}


def _cost_of(
    trial: TrialConfig, steps: Sequence[StepRecord], device: str
) -> CostModel | None:
    """Who says how a step's time splits: a fit to the run's own steps; None if these are
    too few."""
    limits = {
        "max_num_seqs": trial.engine.scheduler.max_num_seqs,
        "max_num_batched_tokens": trial.engine.scheduler.max_num_batched_tokens,
    }
    if len(steps) < MIN_STEPS:
        return None
    found = fit_calibration(
        steps, {}, device=device, model=trial.engine.model, facts={}, **limits
    )
    return MeasuredModel(found, **limits)

"""Steps of real engines over a grid of loads: the data that a calibration is fitted to."""

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paxkv.engine import Engine
from paxkv.sampling_params import SamplingParams
from paxkv.simulation.step_records import RecordingExecutor, StepRecord

FULL_STEPS = 8  # decode steps of a whole batch, in each load
LEAST_ROUNDS = 3
MOVING_STEPS = 48  # the same where sequences shall outgrow the pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Equal requests that all arrive at once, and the set that their steps belong to."""

    name: str  # of the set
    block_size: int
    batch: int  # requests
    context: int  # prompt tokens of each
    # its engine's pool is small and swaps; requests have two samples, which copy blocks
    has_moves: bool = False

    @property
    def num_samples(self) -> int:
        return 2 if self.has_moves else 1

    @property
    def bench(self) -> tuple[int, bool]:
        """Loads that are equal here run on the same engine."""
        return self.block_size, self.has_moves


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """An engine that records. Its `executor` was replaced by the recorder."""

    engine: Engine
    recorder: RecordingExecutor


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the rounds gave."""

    sets: dict[str, list[StepRecord]]  # by name of the load
    num_rounds: int
    disturbance: float  # mean of median over quantile, less 1


def make_bench(engine: Engine, block_size: int, windows: Sequence[int | None]) -> Bench:
    """Lets an engine record its steps from now on."""
    recorder = RecordingExecutor(engine.executor, block_size, windows)
    engine.executor = recorder
    return Bench(engine=engine, recorder=recorder)


def output_tokens(load: Load, max_num_batched_tokens: int, max_context: int) -> int:
    """Of each request: enough for the first to run on until the last has begun, so that
    the whole batch decodes together; then the batch shrinks, as the first ended first."""
    steps_to_begin = -(-load.batch * load.context // max_num_batched_tokens)
    full_steps = MOVING_STEPS if load.has_moves else FULL_STEPS
    return min(steps_to_begin + full_steps, max_context - load.context)


def run_load(bench: Bench, load: Load, num_output_tokens: int) -> list[StepRecord]:
    """All steps of a load, greedily and to the end.

    Raises:
      ValueError: the engine does not serve such requests.
    """
    for index in range(load.batch):
        prompt = [(7 * index + position) % 251 for position in range(load.context)]
        bench.engine.add(
            prompt,
            SamplingParams(
                n=load.num_samples,
                max_tokens=num_output_tokens,
                temperature=0.0,
                ignore_eos=True,
            ),
        )
    records, told = [], 0
    while bench.engine.has_unfinished:
        outcome = bench.engine.step()
        record = bench.recorder.record(outcome.metrics)
        if record is not None:
            records.append(record)
        told += sum(len(update.new_token_ids) for update in outcome.updates)
    expected = load.batch * load.num_samples * num_output_tokens
    if told != expected:
        raise ValueError(
            f"{load} gave {told} tokens, not {expected}: its "
            "requests do not fit; lower the context or raise cache.num_blocks."
        )
    return records


def measure(
    benches: Mapping[tuple[int, bool], Bench],
    loads: Sequence[Load],
    num_output_tokens: Sequence[int],
    rounds: int,
    quantile: float,
    most_seconds: float = math.inf,
    on_load: Callable[[], object] = lambda: None,
) -> Measured:
    """Steps of every set, each with a quantile of its times over the rounds.

    Loads take turns, each round in another order, so that what disturbs the machine for a
    while is an outlier of some of them, and the rule for no set.

    Args:
      most_seconds: after which no further round begins, once there were LEAST_ROUNDS.
      quantile: 0.5 is the median. Other processes only add time, so on a busy machine a
        lower one is nearer to what the device takes.

    Raises:
      ValueError: a load does not fit its engine.
      RuntimeError: rounds of one load differ in what their steps ask for.
    """
    seen: dict[Load, list[list[StepRecord]]] = {load: [] for load in loads}
    turns = list(zip(loads, num_output_tokens, strict=True))
    order = random.Random(0)
    started_s, num_rounds = time.perf_counter(), 0
    for num_rounds in range(1, rounds + 1):
        order.shuffle(turns)
        for load, count in turns:
            seen[load].append(run_load(benches[load.bench], load, count))
            on_load()
        is_late = time.perf_counter() - started_s > most_seconds
        if is_late and num_rounds >= LEAST_ROUNDS:
            break
    sets: dict[str, list[StepRecord]] = {load.name: [] for load in loads}
    ratios = []
    for load, runs in seen.items():
        works = [[record.work for record in run] for run in runs]
        if any(work != works[0] for work in works):
            raise RuntimeError(
                f"rounds of {load} took different steps; its engine must start each round "
                "empty, keep no prefixes and inject no faults."
            )
        for same in zip(*runs, strict=True):
            record, ratio = _at_quantile(same, quantile)
            sets[load.name].append(record)
            ratios.append(ratio)
    return Measured(
        sets=sets, num_rounds=num_rounds, disturbance=statistics.fmean(ratios) - 1
    )


def _at_quantile(same: Sequence[StepRecord], quantile: float) -> tuple[StepRecord, float]:
    """One record of equal steps, and how much longer their median took."""
    duration_s = np.quantile([record.duration_s for record in same], (quantile, 0.5))
    host_s = np.quantile([record.host_s for record in same], (quantile, 0.5))
    record = replace(same[0], duration_s=float(duration_s[0]), host_s=float(host_s[0]))
    return record, float(duration_s[1] / duration_s[0])


def grid_loads(
    fit: Mapping[str, Sequence[int]],
    held_out: Mapping[str, Sequence[int]],
    max_prompt_tokens: int,
) -> list[Load]:
    """The grid of `fit`, and sets that leave it along one axis, then along all.

    Args:
      fit, held_out: values of "block_sizes", "batches" and "contexts".
      max_prompt_tokens: of a load in all; larger ones are left out.

    Raises:
      ValueError: a held-out value occurs in the fit, or a set is empty.
    """
    for axis in fit:
        if both := set(fit[axis]) & set(held_out[axis]):
            raise ValueError(
                f"{axis}={sorted(both)} are fitted and held out; choose others for one."
            )
    axes = {
        "fit": fit,
        "block sizes": {**fit, "block_sizes": held_out["block_sizes"]},
        "contexts": {**fit, "contexts": held_out["contexts"]},
        "batches": {**fit, "batches": held_out["batches"]},
        "all three": held_out,
    }
    loads = [
        Load(name=name, block_size=block_size, batch=batch, context=context)
        for name, values in axes.items()
        for block_size in values["block_sizes"]
        for batch in values["batches"]
        for context in values["contexts"]
        if batch * context <= max_prompt_tokens
    ]
    if missing := axes.keys() - {load.name for load in loads}:
        raise ValueError(
            f"{max_prompt_tokens=} leaves no load in {sorted(missing)}; raise it, or name "
            "smaller batches and contexts."
        )
    return loads

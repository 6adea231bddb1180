"""Fits what a step costs on this device, and prints the error on steps outside the fit.

    python -m experiments.calibrate --config=configs/calibrate.py
    python -m experiments.calibrate --steps=steps.jsonl --held_out_steps=others.jsonl

Without `--steps` the engine runs a grid of batches, contexts and block sizes. With it, the
steps were recorded by a run of `serve_trace` with config.record_steps; without
`--held_out_steps` their last third is held out. Writes `calibration.json`, which the
profile `calibrated` of a simulation takes as `hardware.calibration`, and adds a row.
"""

import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path

from absl import app, flags, logging
from ml_collections import config_flags
from tqdm import tqdm

from experiments import entry
from paxkv.building import build_engine, context_limit
from paxkv.config import CacheConfig, EngineConfig, SchedulerConfig
from paxkv.models.cache_groups import group_windows
from paxkv.models.loading import load_decoder
from paxkv.platform import current_device
from paxkv.results import ResultsNotWritten, RunInfo, append_row, prepare_folder, run_facts
from paxkv.simulation.calibration import fit_calibration
from paxkv.simulation.measured_model import Calibration, save_calibration
from paxkv.simulation.measuring import (
    Bench,
    Load,
    grid_loads,
    make_bench,
    measure,
    output_tokens,
)
from paxkv.simulation.step_records import StepRecord, read_steps

DEFAULT_CONFIG = "configs/calibrate.py"
CONFIG = config_flags.DEFINE_config_file(
    "config", help_string=f"Python file of the config; default: {DEFAULT_CONFIG}."
)
STEPS = flags.DEFINE_list("steps", [], "Files of recorded steps to fit to.")
HELD_OUT = flags.DEFINE_list("held_out_steps", [], "Files of steps that are only tried.")

Sets = dict[str, list[StepRecord]]


def recorded_sets() -> Sets:
    """Of the files that the flags name."""
    steps = [step for path in STEPS.value for step in read_steps(Path(path))]
    if HELD_OUT.value:
        held_out = [step for path in HELD_OUT.value for step in read_steps(Path(path))]
        return {"fit": steps, "held out": held_out}
    first = len(steps) * 2 // 3
    return {"fit": steps[:first], "last third": steps[first:]}


def engine_config(block_size: int, has_moves: bool) -> EngineConfig:
    """Of one of the engines. One with moves swaps, as its pool is small."""
    config = CONFIG.value
    positions = config.moves.pool_positions if has_moves else config.cache.pool_positions
    num_blocks = positions // block_size + 1
    pressure = "preempt_swap" if has_moves else "preempt_recompute"
    cache = CacheConfig(
        block_size=block_size,
        num_blocks=num_blocks,
        num_window_blocks=num_blocks,
        dtype=config.cache.dtype,
        host_blocks=config.moves.host_blocks if has_moves else 0,
    )
    scheduler = SchedulerConfig(**config.scheduler, pressure=pressure)
    return EngineConfig(**config.engine, cache=cache, scheduler=scheduler)


def measured_sets() -> Sets:
    """Of the config's grid, on engines around one set of weights."""
    config = CONFIG.value
    decoder = load_decoder(config.engine.model, config.weights_dtype)
    loads = grid_loads(
        config.fit.to_dict(), config.held_out.to_dict(), config.max_prompt_tokens
    )
    moves = config.moves
    loads += [
        Load(
            name="fit",
            block_size=moves.block_size,
            batch=batch,
            context=context,
            has_moves=True,
        )
        for batch, context in zip(moves.batches, moves.contexts, strict=True)
    ]
    windows = group_windows(decoder.config)
    benches: dict[tuple[int, bool], Bench] = {}
    max_context = decoder.config.max_context
    for load in tqdm(loads, desc="compile", unit="load", leave=False):
        if load.bench not in benches:
            one = engine_config(*load.bench)
            max_context = context_limit(one, decoder.config.max_context)
            engine, executor = build_engine(one, decoder)
            executor.warm_up(engine.scheduler.tables)
            benches[load.bench] = make_bench(engine, load.block_size, windows)
    budget = config.scheduler.max_num_batched_tokens
    counts = [output_tokens(load, budget, max_context) for load in loads]
    total = len(loads) * config.rounds
    with tqdm(total=total, desc="measure", unit="load") as bar:
        found = measure(
            benches,
            loads,
            counts,
            config.rounds,
            config.quantile,
            config.most_seconds,
            lambda: bar.update(),
        )
    print(
        f"A step counts with the {config.quantile} quantile of {found.num_rounds} rounds, "
        f"whose median is {found.disturbance:.0%} longer."
    )
    return found.sets


def error_table(fitted: Calibration) -> str:
    lines = [f"{'steps of':<12} {'count':>6} {'MAPE':>7} {'p95':>7} {'bias':>7}"]
    lines += [
        f"{name:<12} {error.num_steps:>6,} {error.mape:>7.1%} {error.p95:>7.1%} "
        f"{error.bias:>+7.1%}"
        for name, error in fitted.errors.items()
    ]
    return "\n".join(lines)


def main() -> int:
    logging.set_verbosity(logging.WARNING)
    config = CONFIG.value
    if HELD_OUT.value and not STEPS.value:
        raise app.UsageError("--held_out_steps needs --steps to fit to; give both.")
    folder = Path(config.output_folder)
    info = RunInfo(
        experiment="calibrate",
        kind="measured",
        command=shlex.join(["python", "-m", "experiments.calibrate", *sys.argv[1:]]),
        seed=0,
        device=current_device().name,
        implementation=config.engine.implementation,
        matmul_precision=config.engine.matmul_precision,
        xla_flags=os.environ.get("XLA_FLAGS", ""),
    )
    facts = run_facts(info)

    # --- measure, or read, and fit
    try:
        prepare_folder(folder)
        sets = recorded_sets() if STEPS.value else measured_sets()
        fitted = fit_calibration(
            sets.pop("fit"),
            sets,
            max_num_seqs=config.scheduler.max_num_seqs,
            max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
            device=info.device,
            model=config.engine.model,
            facts={key: facts[key] for key in ("time_utc", "command", "git", "versions")},
        )
    except (ValueError, OSError, ImportError) as error:
        raise app.UsageError(str(error)) from error

    # --- report and write
    print(error_table(fitted))
    if fitted.unseen:
        print(f"No step of the fit had {', '.join(fitted.unseen)}: these have no price.")
    path = folder / "calibration.json"
    row = facts | {"config": config.to_dict(), "errors": {}}
    row |= {"device_s": fitted.device_s, "host_s": fitted.host_s, "unseen": fitted.unseen}
    row["errors"] = {name: asdict(error) for name, error in fitted.errors.items()}
    try:
        save_calibration(path, fitted)
        append_row(folder / "rows.jsonl", row)
    except ResultsNotWritten as error:
        print(f"FAILED: {error}")
        return 1
    print(f"The calibration is {path}; a row was added to {folder / 'rows.jsonl'}.")
    return 0


if __name__ == "__main__":
    entry.run(main, config=DEFAULT_CONFIG)

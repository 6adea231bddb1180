"""How well costs that were fitted to steps of the real engine predict its other steps.

Runs the config's model on the device that jax has, over a grid of loads; fits the costs to
some of them, and tells the error on loads outside of it in block size, context and batch.
A short form of experiments.calibrate. Of the tree it reads the engine, the limits of the
scheduler, and `calibrate` (the fields of `GridConfig`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from paxkv.building import build_engine, context_limit
from paxkv.models.cache_groups import group_windows
from paxkv.models.decoder import Decoder
from paxkv.models.loading import load_decoder
from paxkv.platform import current_device
from paxkv.simulation.calibration import fit_calibration
from paxkv.simulation.measuring import (
    Bench,
    grid_loads,
    make_bench,
    measure,
    output_tokens,
)
from paxkv.trials.trial_config import TrialConfig, trial_config

KIND = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class GridConfig:
    """Loads: values of "block_sizes", "batches" and "contexts" (`grid_loads`)."""

    fit: Mapping[str, Sequence[int]]
    held_out: Mapping[str, Sequence[int]]
    max_prompt_tokens: int  # of a load; larger ones are left out
    pool_positions: int  # of each engine
    rounds: int  # of the whole grid, as far as they fit into
    most_seconds: float
    quantile: float  # of a step's times over the rounds


def run(tree: Mapping[str, Any], profile: str) -> dict[str, Any]:
    """`errors` has those of each set of steps, of which "fit" was fitted."""
    del profile  # its times are real
    config, trial = GridConfig(**tree["calibrate"]), trial_config(tree)
    loads = grid_loads(config.fit, config.held_out, config.max_prompt_tokens)
    decoder = load_decoder(trial.engine.model, trial.weights_dtype)
    max_context = context_limit(trial.engine, decoder.config.max_context)
    limits = trial.engine.scheduler
    block_sizes = {load.bench: load.block_size for load in loads}  # each engine once
    measured = measure(
        {key: _bench(trial, size, config, decoder) for key, size in block_sizes.items()},
        loads,
        [output_tokens(load, limits.max_num_batched_tokens, max_context) for load in loads],
        config.rounds,
        config.quantile,
        config.most_seconds,
    )
    sets = dict(measured.sets)
    device = current_device().name
    fitted = fit_calibration(
        sets.pop("fit"),
        sets,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        device=device,
        model=trial.engine.model,
        facts={},
    )
    return {
        "errors": {name: asdict(error) for name, error in fitted.errors.items()},
        "num_rounds": measured.num_rounds,
        "disturbance": measured.disturbance,
        "device": device,
    }


def _bench(
    trial: TrialConfig, block_size: int, config: GridConfig, decoder: Decoder
) -> Bench:
    num_blocks = config.pool_positions // block_size + 1
    cache = replace(
        trial.engine.cache,
        block_size=block_size,
        num_blocks=num_blocks,
        num_window_blocks=num_blocks,
    )
    engine, executor = build_engine(replace(trial.engine, cache=cache), decoder)
    executor.warm_up(engine.scheduler.tables)
    return make_bench(engine, block_size, group_windows(decoder.config))

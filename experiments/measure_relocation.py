"""What swapping a block and computing a token again cost on this device.

    python -m experiments.measure_relocation --model=paxkv/assets/recall
    python -m experiments.measure_relocation --model=model.gguf --kv_dtype=bfloat16

Prints `swap_s_per_block` and `recompute_s_per_token`, the settings by which the pressure
policy `swap_or_recompute` chooses, and the crossover. Blocks go out and in again by the
serving path, checksums included; tokens are computed by steps of the engine's executor.
Sizes take turns, and lines go through their medians.
"""

import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path

from absl import app, flags, logging
from tqdm import tqdm

from experiments import entry
from paxkv.config import CacheConfig, EngineConfig
from paxkv.models.loading import load_decoder
from paxkv.relocation import Line, RelocationBench
from paxkv.results import ResultsNotWritten, RunInfo, append_row, prepare_folder, run_facts

MODEL = flags.DEFINE_string("model", None, "Checkpoint, directory or GGUF.", required=True)
DTYPE = flags.DEFINE_string("dtype", "float32", "Of the weights.")
KV_DTYPE = flags.DEFINE_string("kv_dtype", "float32", "Of the pool.")
BLOCK_SIZE = flags.DEFINE_integer("block_size", 16, "Tokens per block.")
IMPLEMENTATION = flags.DEFINE_string("implementation", "auto", "Of attention and moves.")
PRECISION = flags.DEFINE_string("matmul_precision", "highest", "Of products.")
BLOCKS = flags.DEFINE_list("blocks", ["1", "8", "16", "32", "64"], "Swapped at once.")
TOKENS = flags.DEFINE_list("tokens", ["16", "64", "128", "256", "512"], "Of a step.")
ROUNDS = flags.DEFINE_integer("rounds", 15, "Timed runs of each size.", lower_bound=1)
OUT = flags.DEFINE_string("out", None, "A file that a row is added to.")


def line_text(label: str, line: Line) -> str:
    medians = ", ".join(
        f"{size}: {1e3 * seconds:.3g}"
        for size, seconds in zip(line.sizes, line.median_s, strict=True)
    )
    return (
        f"{label}, ms: {medians}\n  line from {1e3 * line.start_s:.3g} ms; residuals up to "
        f"{100 * line.largest_residual:.0f} % of the largest"
    )


def main() -> int:
    logging.set_verbosity(logging.WARNING)

    # --- load and build
    try:
        if OUT.value:
            prepare_folder(Path(OUT.value).parent)
        config = EngineConfig(
            model=MODEL.value,
            implementation=IMPLEMENTATION.value,
            matmul_precision=PRECISION.value,
            cache=CacheConfig(block_size=BLOCK_SIZE.value, dtype=KV_DTYPE.value),
        )
        bench = RelocationBench(
            config,
            load_decoder(MODEL.value, DTYPE.value),
            block_counts=entry.integers(BLOCKS),
            token_counts=entry.integers(TOKENS),
        )
    except (ValueError, OSError, ImportError) as error:
        raise app.UsageError(str(error)) from error
    executor = bench.executor
    info = RunInfo(
        experiment="measure_relocation",
        kind="measured",
        command=shlex.join(
            ["python", "-m", "experiments.measure_relocation", *sys.argv[1:]]
        ),
        seed=0,
        device=executor.device_name,
        implementation=executor.options.attention.implementation,
        matmul_precision=config.matmul_precision,
        xla_flags=os.environ.get("XLA_FLAGS", ""),
    )
    facts = run_facts(info)
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    print(
        f"measured on {info.device} ({versions}): {info.implementation} attention, "
        f"{DTYPE.value} weights, {KV_DTYPE.value} cache, "
        f"blocks of {BLOCK_SIZE.value} tokens"
    )

    # --- measure
    try:
        total = bench.num_runs * ROUNDS.value
        with tqdm(total=total, desc="swap and compute", unit="run") as bar:
            found = bench.measure(ROUNDS.value, bar.update)
    except ArithmeticError as error:
        print(f"FAILED: {error}")
        return 1

    # --- report and write
    crossover = found.crossover_tokens_per_block
    print(line_text(f"blocks of {found.bytes_per_block:,} bytes out and in", found.swap))
    print(line_text("tokens computed", found.recompute))
    print(f"swap_s_per_block={found.swap_s_per_block:.3e}")
    print(f"recompute_s_per_token={found.recompute_s_per_token:.3e}")
    cheaper = "swapping" if crossover < BLOCK_SIZE.value else "computing again"
    print(
        f"Swapping pays from {crossover:.3g} tokens per block; full blocks have "
        f"{BLOCK_SIZE.value}, so {cheaper} is cheaper."
    )
    if OUT.value:
        row = facts | {"model": MODEL.value, "block_size": BLOCK_SIZE.value}
        row |= {"dtype": DTYPE.value, "kv_dtype": KV_DTYPE.value, "rounds": ROUNDS.value}
        row |= asdict(found) | {"crossover_tokens_per_block": crossover}
        try:
            append_row(Path(OUT.value), row)
            print(f"A row was added to {OUT.value}.")
        except ResultsNotWritten as error:
            print(f"FAILED: {error}")
            return 1
    return 0


if __name__ == "__main__":
    entry.run(main)

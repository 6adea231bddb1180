"""From which shared prefix on does cascade decode pay? Timed in turns with plain decode.

    python -m experiments.bench_cascade --prefixes=64,256,1024,4096 --batches=2,8,32

All sequences share `prefix` tokens and have `--own` of their own. Prints the time of
plain over that of cascade: above 1, sharing the reads pays.
"""

import functools
import statistics
import sys
from pathlib import Path

import jax
import numpy as np
from absl import app, flags, logging

from experiments import entry
from pallas_kernels import benchmarking
from pallas_kernels.benchmarking import Problem
from pallas_kernels.paged_attention import cascade_paged_attention, paged_attention
from paxkv.results import ResultsNotWritten, RunInfo, append_row, prepare_folder, run_facts

PREFIXES = flags.DEFINE_list("prefixes", ["64", "256", "1024", "4096"], "Shared tokens.")
BATCHES = flags.DEFINE_list("batches", ["2", "8", "32"], "Sequences.")
OWN = flags.DEFINE_integer("own", 128, "Tokens of each sequence alone.", lower_bound=1)
BLOCK_SIZE = flags.DEFINE_integer("block_size", 16, "Tokens a block.", lower_bound=1)
DTYPE = flags.DEFINE_string("dtype", "float32", "Of the pool.")
IMPLEMENTATION = flags.DEFINE_string("implementation", "xla", "Of both.")
ROUNDS = flags.DEFINE_integer("rounds", 15, "Timed calls of each.", lower_bound=1)
OUT = flags.DEFINE_string("out", None, "A file that rows are added to.")


def measure(prefix: int, batch: int) -> dict[str, float]:
    """Median milliseconds of both, after a comparison of their results.

    Raises:
      ArithmeticError: they differ by more than rounding explains.
    """
    if prefix % BLOCK_SIZE.value:
        raise ValueError(f"{prefix=} must be whole blocks of {BLOCK_SIZE.value} tokens.")
    problem = Problem(
        batch=batch,
        context=prefix + OWN.value,
        block_size=BLOCK_SIZE.value,
        dtype=DTYPE.value,
        num_heads=9,
        kv_heads=3,
        head_dim=64,
        is_prefill=False,
    )
    device = jax.devices()[0]
    inputs = benchmarking.make_inputs(problem, device.platform)
    shared = prefix // BLOCK_SIZE.value
    tables = inputs.block_tables.at[:, :shared].set(inputs.block_tables[0, :shared])
    arguments = inputs._replace(block_tables=tables).arguments()
    options = dict(
        scale=problem.scale,
        implementation=IMPLEMENTATION.value,
        device_kind=device.device_kind,
    )
    ops = {
        "plain": functools.partial(paged_attention, **options),
        "cascade": functools.partial(
            cascade_paged_attention, **options, shared_blocks=shared
        ),
    }

    def call(run):
        return lambda: jax.block_until_ready(run(*arguments))

    runs = {name: call(jax.jit(op)) for name, op in ops.items()}
    error = float(np.abs(runs["cascade"]() - runs["plain"]()).max())
    if not error <= benchmarking.TOLERANCE:
        raise ArithmeticError(f"{problem}: cascade differs from plain decode by {error}.")
    evict = benchmarking.make_evict(device.platform)
    seconds = benchmarking.interleaved(runs, ROUNDS.value, evict)
    return {name: 1e3 * statistics.median(values) for name, values in seconds.items()}


def main() -> int:
    logging.set_verbosity(logging.WARNING)
    info = RunInfo(
        experiment="bench_cascade",
        kind="measured",
        command=" ".join(sys.argv),
        seed=0,
        device=jax.devices()[0].device_kind,
        implementation=IMPLEMENTATION.value,
        matmul_precision="default",
        xla_flags="",
    )
    facts = run_facts(info) | {"machine": benchmarking.machine()}
    print(f"{'sequences':>9} {'prefix':>6} {'plain ms':>9} {'cascade ms':>10} {'ratio':>6}")
    try:
        if OUT.value:
            prepare_folder(Path(OUT.value).parent)
        for batch in map(int, BATCHES.value):
            for prefix in map(int, PREFIXES.value):
                ms = measure(prefix, batch)
                ratio = ms["plain"] / ms["cascade"]
                print(
                    f"{batch:>9} {prefix:>6} {ms['plain']:>9.3f} {ms['cascade']:>10.3f} "
                    f"{ratio:>6.2f}",
                    flush=True,
                )
                row = facts | dict(batch=batch, prefix=prefix, ratio=ratio, median_ms=ms)
                if OUT.value:
                    append_row(Path(OUT.value), row)
    except (ValueError, ImportError, ResultsNotWritten) as error:
        raise app.UsageError(str(error)) from error
    except ArithmeticError as error:
        print(f"wrong result: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    entry.run(main)

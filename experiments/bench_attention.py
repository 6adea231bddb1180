"""Times paged attention against its alternatives, in turns, on the device that jax has.

    python -m experiments.bench_attention --out=results/bench_attention.jsonl
    python -m experiments.bench_attention --mode=prefill --contexts=512,2048 --batches=1
    python -m experiments.bench_attention --torch_python=/path/to/python   # beside SDPA

Decoding: milliseconds, GB/s of K and V, and the ratio to the rate at which all threads
read the same pool, cold. Prefill: GFLOP/s of the pairs that are seen, and the ratio to
jax's own products on the same shapes. Every implementation is first compared with the
reference, or with `xla` where K and V are larger than 64 MiB (a row names which); a wrong
one ends the run with 1. `--out` gets a JSON object per problem, and a second run with the
same file measures only what it lacks.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import jax
from absl import app, flags, logging
from tqdm import tqdm

from experiments import entry
from pallas_kernels import benchmarking
from pallas_kernels.benchmarking import Problem, TorchPeer
from pallas_kernels.layout import POOL_DTYPES
from paxkv.analysis.attention import attention_line
from paxkv.results import (
    ResultsNotWritten,
    RunInfo,
    append_row,
    prepare_folder,
    rows_by,
    run_facts,
)

CHOICES = {
    "cpu": ("cpu", "xla"),
    "gpu": ("gpu", "gpu_triton", "xla"),
    "tpu": ("tpu", "xla"),
}

MODE = flags.DEFINE_enum("mode", "decode", ["decode", "prefill"], "Of the queries.")
CONTEXTS = flags.DEFINE_list("contexts", ["128", "1024", "8192"], "Tokens a sequence.")
BATCHES = flags.DEFINE_list("batches", ["1", "8", "64"], "Sequences.")
BLOCK_SIZES = flags.DEFINE_list("block_sizes", ["1", "16", "256"], "Tokens a block.")
POOLS = flags.DEFINE_list(
    "dtypes", ["float32", "bfloat16"], f"Of {', '.join(POOL_DTYPES)}."
)
HEADS = flags.DEFINE_list("heads", ["9", "3", "64"], "Query heads, kv heads, head size.")
IMPLEMENTATIONS = flags.DEFINE_list(
    "implementations", [], "Default: those of the platform."
)
ROUNDS = flags.DEFINE_integer("rounds", 15, "Timed calls of each.", lower_bound=1)
MAX_GB = flags.DEFINE_float("max_gb", 4.0, "Problems with more K and V are left out.")
TORCH = flags.DEFINE_string("torch_python", None, "An interpreter that has torch.")
OUT = flags.DEFINE_string("out", None, "A file of rows, that a second run completes.")


def make_problems() -> list[Problem]:
    """The product of the flags, without what is too large."""
    heads = entry.numbers(HEADS)
    if len(heads) != 3 or heads[0] % heads[1]:
        raise app.UsageError(f"--heads={heads} must be H, K, D with H a multiple of K.")
    if unknown := set(POOLS.value) - set(POOL_DTYPES):
        raise app.UsageError(
            f"--dtypes={sorted(unknown)} unknown; choose from {POOL_DTYPES}."
        )
    problems = [
        Problem(
            batch=batch,
            context=context,
            block_size=block_size,
            dtype=dtype,
            num_heads=heads[0],
            kv_heads=heads[1],
            head_dim=heads[2],
            is_prefill=MODE.value == "prefill",
        )
        for dtype in POOLS.value
        for context in entry.numbers(CONTEXTS)
        for batch in entry.numbers(BATCHES)
        for block_size in entry.numbers(BLOCK_SIZES)
    ]
    return [problem for problem in problems if problem.kv_bytes <= MAX_GB.value * 1e9]


def main() -> int:
    logging.set_verbosity(logging.WARNING)
    problems = make_problems()
    out = Path(OUT.value) if OUT.value else None
    try:
        done = rows_by(lambda row: json.dumps(row["problem"]), out)
    except ValueError as error:
        raise app.UsageError(f"--out={error}") from error
    platform = jax.default_backend()
    names = IMPLEMENTATIONS.value or CHOICES[platform]
    try:
        peer = TorchPeer(TORCH.value) if TORCH.value else None
    except (OSError, ChildProcessError) as error:
        raise app.UsageError(f"--torch_python={TORCH.value}: {error}") from error
    info = RunInfo(
        experiment="bench_attention",
        kind="measured",
        command=" ".join(sys.argv),
        seed=0,
        device=jax.devices()[0].device_kind,
        implementation=",".join(names),
        matmul_precision="default",
        xla_flags="",
    )
    facts = run_facts(info) | {"machine": benchmarking.machine()}
    facts["torch"] = peer.version if peer else None
    try:
        if out is not None:
            prepare_folder(out.parent)
        for problem in tqdm(problems, unit="problem"):
            key = json.dumps(asdict(problem))
            if key not in done:
                done[key] = facts | benchmarking.measure(problem, names, peer, ROUNDS.value)
                if out is not None:
                    append_row(out, done[key])
            tqdm.write(attention_line(done[key]))
    except (ResultsNotWritten, ValueError, ImportError) as error:
        raise app.UsageError(str(error)) from error  # also of what a kernel lacks
    except ArithmeticError as error:
        print(f"wrong result: {error}", file=sys.stderr)
        return 1
    except ChildProcessError as error:
        raise app.UsageError(f"--torch_python: {error}") from error
    finally:
        if peer is not None:
            peer.close()
    return 0


if __name__ == "__main__":
    entry.run(main)

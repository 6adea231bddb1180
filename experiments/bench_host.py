"""Times the host side alone: planning, packing and committing steps, and what the blocks
of a sequence cost; in turns with vLLM's scheduler and KV cache manager where it is given.

    python -m experiments.bench_host --out=results/bench_host.jsonl
    python -m experiments.bench_host --vllm=/path/to/python:/path/to/vllm_tpu-0.32.0

No model runs: the streams are recorded beforehand, with ShareGPT's lengths and shared
prefixes, and all sides replay the same requests, tokens and ends, which is checked. vLLM's
numbers are of its `schedule` + `update_from_output`, and of its `KVCacheManager`; ours
include packing. `--vllm` takes an interpreter with vLLM's needs and the unpacked source of
vllm-tpu (also from the variable PAXKV_VLLM_HOST).
"""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags, logging
from tqdm import tqdm

from experiments import entry
from pallas_kernels import benchmarking
from paxkv.analysis import host_speed
from paxkv.analysis.host_speed import Measure
from paxkv.host_bench import CLOCKS, GC_MODES
from paxkv.host_peer import Peer, Timing, time_stream
from paxkv.host_stream import Stream, record_lookups, record_serving
from paxkv.results import ResultsNotWritten, RunInfo, append_row, prepare_folder, run_facts
from paxkv.step_inputs import make_buckets, pack
from paxkv.types import Plan

RUNNING = flags.DEFINE_list("running", ["128", "1024"], "Running requests of decode steps.")
SERVING = flags.DEFINE_integer("serving", 128, "Running requests of a service.", 1)
POOLS = flags.DEFINE_list("pools", ["1000", "10000", "100000", "1000000"], "Blocks each.")
POOL_RUNNING = flags.DEFINE_integer("pool_running", 32, "Requests in these pools.", 1)
STEPS = flags.DEFINE_integer("steps", 200, "Steps that count, of each.", lower_bound=1)
BATCH = flags.DEFINE_integer("batch", 10, "Steps of one turn.", lower_bound=1)
PROMPT = flags.DEFINE_integer("prompt", 500, "Tokens of looked-up prompts.", lower_bound=17)
BLOCK_SIZE = flags.DEFINE_integer("block_size", 16, "Tokens a block.", lower_bound=1)
SEED = flags.DEFINE_integer("seed", 0, "Of the streams.", lower_bound=0)
GC = flags.DEFINE_enum("gc", "frozen", GC_MODES, "Garbage collection, on both sides.")
CLOCK = flags.DEFINE_enum("clock", "wall", list(CLOCKS), "On both sides.")
VLLM = flags.DEFINE_string("vllm", os.environ.get("PAXKV_VLLM_HOST"), "PYTHON:SOURCE.")
OUT = flags.DEFINE_string("out", None, "A file that rows are added to.")

PEER_SCRIPT = Path(__file__).parents[1] / "scripts" / "peer_vllm_host.py"
POOL_CONTEXT = 512  # tokens: short requests, which fit in the smallest pool


def timed(
    stream: Stream, peer: Peer | None, pools: Sequence[int] = (), *, steps: bool = True
) -> dict[str, Any]:
    """A row; `steps` are whole ones, else the manager alone is timed."""
    timing = Timing(
        block_size=BLOCK_SIZE.value, batch=BATCH.value, gc=GC.value, clock=CLOCK.value
    )
    buckets = make_buckets(stream.num_rows, stream.max_num_batched_tokens)

    def pack_plan(plan: Plan) -> object:
        return pack(plan, buckets.shape_for(plan.lengths), (BLOCK_SIZE.value,), False)

    sides = (len(pools) or 1) + (peer is not None)
    with tqdm(total=len(stream.steps) * sides, unit="step", leave=False) as bar:
        return time_stream(
            stream, timing, pack_plan if steps else None, peer, bar.update, pools
        )


def cases(peer: Peer | None) -> Iterator[tuple[dict[str, Any], list[Measure]]]:
    """What each case found: a row, and its measures."""
    steps, seed = STEPS.value, SEED.value
    for running in entry.numbers(RUNNING):
        stream = record_serving(seed, running, steps, requests_end=False)
        row = timed(stream, peer)
        name = f"plan + pack + commit, {running} decoding"
        limit = host_speed.STEP_LIMITS_US.get(running)
        measure = host_speed.step_measure(name, row["median_us"], limit=limit)
        yield row | {"case": "decode", "running": running}, [measure]

    stream = record_serving(seed, SERVING.value, steps)
    row = timed(stream, peer)
    name, limit = f"steps, {SERVING.value} served", host_speed.STEP_RATIO_LIMIT
    measure = host_speed.step_measure(name, row["median_us"], ratio_limit=limit)
    yield row | {"case": "serving", "running": SERVING.value}, [measure]

    row = timed(stream, peer, steps=False)
    medians = row["median_us"]
    name = f"admit, decode, free, {SERVING.value} served"
    decode = host_speed.manager_measure(
        "decode: blocks and tables, per running request",
        medians,
        ["decode"],
        limit=host_speed.DECODE_LIMIT_US,
        with_peer=False,
    )
    cached = host_speed.manager_measure(
        "decode: these and the cache, per running request", medians, ["decode", "register"]
    )
    measures = [host_speed.stream_measure(name, stream, medians), decode, cached]
    yield row | {"case": "manager", "running": SERVING.value}, measures
    yield from look_up_cases(peer)
    yield pools_case()


def look_up_cases(peer: Peer | None) -> Iterator[tuple[dict[str, Any], list[Measure]]]:
    """One prompt after the other: cached ones, new ones, and new ones in a full pool."""
    held = -(-PROMPT.value // BLOCK_SIZE.value) + 1
    for kind in ("cached", "new", "evicting"):
        stream = record_lookups(
            SEED.value, PROMPT.value, STEPS.value, repeated=kind == "cached"
        )
        in_pool = stream.num_warm if kind == "evicting" else len(stream.prompts)
        row = timed(stream, peer, [held * in_pool + 1], steps=False)
        name, medians = f"{PROMPT.value} tokens, {kind}", row["median_us"]
        measures = [
            host_speed.manager_measure(
                f"look up {name}", medians, ["look_up"], limit=host_speed.LOOK_UP_LIMIT_US
            ),
            host_speed.manager_measure(
                f"allocate + free {name}",
                medians,
                ["allocate", "free"],
                limit=host_speed.ALLOCATE_FREE_LIMIT_US if kind == "new" else None,
                with_peer=False,
            ),
            host_speed.manager_measure(
                f"allocate + cache + free {name}", medians, ["admit", "insert", "free"]
            ),
        ]
        yield row | {"case": "look-up", "kind": kind, "prompt": PROMPT.value}, measures


def pools_case() -> tuple[dict[str, Any], list[Measure]]:
    """The same decode steps in pools of several sizes."""
    pools = entry.numbers(POOLS)
    most_steps = POOL_CONTEXT // 2 - POOL_RUNNING.value // 64 - 8
    if most_steps < 1:
        raise app.UsageError(
            f"--pool_running={POOL_RUNNING.value} leaves no step in a context of "
            f"{POOL_CONTEXT} tokens; lower it."
        )
    stream = record_serving(
        SEED.value,
        POOL_RUNNING.value,
        min(STEPS.value, most_steps),
        max_context=POOL_CONTEXT,
        requests_end=False,
    )
    row = timed(stream, None, pools)
    medians = [of["whole"] for of in row["median_us"].values()]
    whole_us = dict(zip(pools, medians, strict=True))
    name = f"{POOL_RUNNING.value} decoding in {min(pools):,}..{max(pools):,} blocks"
    measure = host_speed.pool_measure(name, whole_us)
    return row | {"case": "pools", "running": POOL_RUNNING.value}, [measure]


def main() -> int:
    logging.set_verbosity(logging.WARNING)
    try:
        peer = Peer(VLLM.value, PEER_SCRIPT) if VLLM.value else None
    except (OSError, ChildProcessError, ValueError) as error:
        raise app.UsageError(f"--vllm: {error}") from error
    info = RunInfo(
        experiment="bench_host",
        kind="measured",
        command=" ".join(sys.argv),
        seed=SEED.value,
        device="host",
        implementation="host",
        matmul_precision="default",
        xla_flags="",
    )
    facts = run_facts(info) | {"machine": benchmarking.machine(), "gc": GC.value}
    facts["clock"] = CLOCK.value
    facts["vllm"] = peer.version if peer else None
    beside = f"in turns with vLLM {peer.version}" if peer else "vLLM is absent (see --vllm)"
    print(
        f"{facts['machine']['cpu']}, {CLOCK.value} clock, gc {GC.value}; {beside}.",
        flush=True,
    )
    measures: list[Measure] = []
    try:
        if OUT.value:
            prepare_folder(Path(OUT.value).parent)
        for row, found in cases(peer):
            measures += found
            rows = [measure.row() for measure in found]
            tqdm.write("; ".join(f"{m.name}: {m.ours:.2f} {m.unit}" for m in found))
            if OUT.value:
                append_row(Path(OUT.value), facts | row | {"measures": rows})
    except (ValueError, ResultsNotWritten) as error:
        raise app.UsageError(str(error)) from error
    except ChildProcessError as error:
        raise app.UsageError(f"--vllm: {error}") from error
    except ArithmeticError as error:
        print(f"wrong result: {error}", file=sys.stderr)
        return 1
    finally:
        if peer is not None:
            peer.close()
    print(host_speed.table(measures))
    return 0


if __name__ == "__main__":
    entry.run(main)

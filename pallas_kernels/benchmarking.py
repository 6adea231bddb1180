"""Problems, clocks and yardsticks to time attention with, on whatever device jax has.

Times on a shared machine move by 2×, so everything that is compared runs in turns, and
the medians of one such run are compared.
"""

import dataclasses
import functools
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.kv_blocks import KVBlocks
from pallas_kernels.layout import kv_layout
from pallas_kernels.paged_attention import paged_attention, ragged_paged_attention
from pallas_kernels.paged_attention.cases import Inputs

EVICTION_BYTES = 128 * 2**20  # several times a last-level cache
TOLERANCE = 2e-3  # float32 sums of thousands of numbers; bf16 products are looser
LOOSE_TOLERANCE = 3e-2
REFERENCE_BYTES = 64 * 2**20  # larger pools are compared with `xla`, for its memory
TORCH_DTYPES = ("float32", "bfloat16")


class TorchPeer:
    """Another process, whose calls take turns with ours."""

    def __init__(self, python: str):
        worker = [python, str(Path(__file__).with_name("torch_peer.py"))]
        pipes: dict[str, Any] = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._process: Any = subprocess.Popen(worker, text=True, **pipes)
        self.version = self._answer()["torch"]

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            raise ChildProcessError("it ended; its message is above.")
        return json.loads(line)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def run(self) -> float:
        """Seconds of one call on what was asked for last, its cache cold."""
        return self.ask({"run": True, "cold": True})["seconds"]

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One layer's attention: every sequence has `context` tokens; in prefill mode all of
    them are queries, else the last one."""

    batch: int
    context: int
    block_size: int
    dtype: str  # of the pool
    num_heads: int
    kv_heads: int
    head_dim: int
    is_prefill: bool

    @property
    def queries(self) -> int:
        return self.batch * (self.context if self.is_prefill else 1)

    @property
    def kv_bytes(self) -> int:
        """Of K and V that must be read at least, scales included."""
        layout = kv_layout(self.kv_heads, self.head_dim, self.dtype, "cpu")
        return self.batch * self.context * layout.bytes_per_block(1)

    @property
    def flops(self) -> int:
        """Of the two products over the pairs that are seen."""
        context = self.context
        pairs = context * (context + 1) // 2 if self.is_prefill else context
        return 4 * self.batch * self.num_heads * self.head_dim * pairs

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5


def make_inputs(problem: Problem, platform: str, seed: int = 0) -> Inputs:
    """Random numbers in blocks that lie in random order."""
    rng = np.random.default_rng(seed)
    width = -(-problem.context // problem.block_size)
    num_blocks = problem.batch * width + 1
    tables = 1 + rng.permutation(num_blocks - 1).reshape(problem.batch, width)
    layout = kv_layout(problem.kv_heads, problem.head_dim, problem.dtype, platform)
    shape = (1, num_blocks, problem.block_size, 2 * problem.kv_heads, problem.head_dim)

    @jax.jit
    def make_pool(key):  # compiled as one: no second copy of a large pool
        return KVBlocks.of_rows(layout, jax.random.normal(key, shape))

    q = rng.standard_normal(
        (problem.queries, problem.num_heads, problem.head_dim), np.float32
    )
    starts = np.arange(problem.batch + 1, dtype=np.int32) * problem.context
    inputs = Inputs(
        q=jnp.asarray(q),
        cache=make_pool(jax.random.key(seed)),
        layer=jnp.int32(0),
        block_tables=jnp.asarray(tables, jnp.int32),
        context_lens=jnp.full(problem.batch, problem.context, jnp.int32),
        query_starts=jnp.asarray(starts) if problem.is_prefill else None,
        num_seqs=jnp.asarray([problem.batch], jnp.int32) if problem.is_prefill else None,
    )
    return jax.block_until_ready(inputs)


def make_run(
    problem: Problem, inputs: Inputs, implementation: str, device_kind: str | None
) -> Callable[[], Any]:
    """A compiled call that returns when its result is there."""
    op = ragged_paged_attention if problem.is_prefill else paged_attention
    options: dict[str, Any] = dict(scale=problem.scale, implementation=implementation)
    if implementation != "reference":
        options["device_kind"] = device_kind
    run = jax.jit(functools.partial(op, **options))
    return lambda: jax.block_until_ready(run(*inputs.arguments()))


def make_read(inputs: Inputs, platform: str) -> Callable[[], Any]:
    """Reads the pool once, as fast as the machine can: the yardstick of decoding.

    On CPU all threads take the largest of their share. Elsewhere XLA does.
    """
    kv = inputs.cache.kv
    if platform != "cpu":
        largest = jax.jit(lambda x: jnp.abs(x.astype(jnp.float32)).max())
        return lambda: jax.block_until_ready(largest(kv))
    from pallas_kernels.cpu_bandwidth import read_all

    numbers = np.asarray(kv).reshape(-1)  # the same memory
    numbers = numbers[: numbers.size // 4 * 4].view(np.float32)
    return lambda: read_all(numbers)


def make_product(problem: Problem) -> tuple[Callable[[], Any], int]:
    """jax's own products on the shapes of a prefill, without softmax; also their flops."""
    rows = problem.context * problem.num_heads // problem.kv_heads
    lead = problem.batch * problem.kv_heads
    q = jnp.ones((lead, rows, problem.head_dim))
    k = jnp.ones((lead, problem.context, problem.head_dim))

    @jax.jit
    def product(q, k):
        logits = jnp.einsum("bqd,bkd->bqk", q, k)
        return jnp.einsum("bqk,bkd->bqd", logits, k)

    flops = 4 * lead * rows * problem.context * problem.head_dim
    return lambda: jax.block_until_ready(product(q, k)), flops


def make_evict(platform: str) -> Callable[[], Any]:
    """Fills the last-level cache with something else, before what must be cold."""
    if platform != "cpu":
        return lambda: None
    other = np.ones(EVICTION_BYTES // 4, np.float32)
    return lambda: other.max()


def interleaved(
    runs: Mapping[str, Callable[[], Any]], rounds: int, before: Callable[[], Any]
) -> dict[str, list[float]]:
    """Seconds of each run, in turns. A run that returns a float has timed itself."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()  # compiles
    for _ in range(rounds):
        for name, run in runs.items():
            before()
            start = time.perf_counter()
            own = run()
            took = time.perf_counter() - start
            seconds[name].append(own if isinstance(own, float) else took)
    return seconds


def check_results(
    problem: Problem, runs: Mapping[str, Callable[[], Any]], inputs: Inputs
) -> tuple[dict[str, float], str]:
    """The largest error of each, and the implementation that it is counted from.

    Raises:
      ArithmeticError: one is larger than rounding explains.
    """
    exact = "reference" if problem.kv_bytes <= REFERENCE_BYTES else "xla"
    wanted = np.asarray(make_run(problem, inputs, exact, None)(), np.float32)
    is_cpu = inputs.cache.layout.platform == "cpu"
    limit = TOLERANCE if is_cpu else LOOSE_TOLERANCE
    errors = {
        name: float(np.abs(np.asarray(run(), np.float32) - wanted).max())
        for name, run in runs.items()
    }
    wrong = {name: error for name, error in errors.items() if not error <= limit}
    if wrong:
        raise ArithmeticError(f"{problem}: {wrong} from {exact}, must be ≤ {limit}.")
    return errors, exact


def measure(
    problem: Problem, names: Iterable[str], peer: TorchPeer | None, rounds: int
) -> dict[str, Any]:
    """Checks implementations, then times them in turns with a yardstick and the peer.

    Returns:
      Medians in ms; rates in 10^9 bytes of K and V a second, or operations; and ratios
      of the rates to that of the yardstick.
    """
    device = jax.devices()[0]
    inputs = make_inputs(problem, device.platform)
    runs = {name: make_run(problem, inputs, name, device.device_kind) for name in names}
    errors, exact = check_results(problem, runs, inputs)
    own_work = problem.flops if problem.is_prefill else problem.kv_bytes
    work = dict.fromkeys(runs, own_work)
    yardstick = "product" if problem.is_prefill else "read"
    if problem.is_prefill:
        runs[yardstick], work[yardstick] = make_product(problem)
    else:
        runs[yardstick] = make_read(inputs, device.platform)
        work[yardstick] = inputs.cache.kv.nbytes
    if peer is not None and problem.dtype in TORCH_DTYPES:
        peer.ask(dataclasses.asdict(problem))
        runs["torch"], work["torch"] = peer.run, own_work
    seconds = interleaved(runs, rounds, make_evict(device.platform))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    rates = {name: work[name] / medians[name] / 1e9 for name in medians}
    return {
        "problem": dataclasses.asdict(problem),
        "errors": errors,
        "compared_with": exact,
        "median_ms": {name: 1e3 * value for name, value in medians.items()},
        "seconds": seconds,
        "giga_per_s": rates,
        "ratio": {name: rate / rates[yardstick] for name, rate in rates.items()},
    }


def machine() -> dict[str, Any]:
    """What the numbers belong to."""
    device = jax.devices()[0]
    return {
        "platform": device.platform,
        "device_kind": device.device_kind,
        "devices": jax.device_count(),
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _cpu_name(),
    }


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":")[1].strip() for line in file if "model name" in line]
    except OSError:
        return "unknown"
    return names[0] if names else "unknown"

"""Layers before blocks, or blocks before layers: what a swap and an attention read pay.

    python -m experiments.bench_layouts --out=results/bench_layouts.jsonl
    python -m experiments.bench_layouts --pools=24,16,4,64 --num_blocks=2048 --moved=8,256

The pools of this package are layer-major, [L, N, B, R, D]: a layer's part is one array,
and a block that is swapped lies in L places. In a block-major pool, [N, L, B, R, D], it
lies in one. Counted, exactly: the contiguous ranges of a swapped block and their bytes.
Measured, in turns, with XLA: gather n blocks of all layers (swap out), scatter them (swap
in), and read n blocks of one layer, as attention does. Every ratio is the median of the
layer-major pool over that of the block-major one: above 1, blocks first is faster.
"""

import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags, logging
from tqdm import tqdm

from experiments import entry
from pallas_kernels import benchmarking
from paxkv.results import ResultsNotWritten, RunInfo, append_row, prepare_folder, run_facts

POOLS = flags.DEFINE_multi_string(
    "pools",
    ["24,16,4,64", "24,16,16,64", "16,16,16,128"],
    "L, B, R, D: layers, tokens a block, rows a token, numbers a row; repeatable.",
)
MOVED = flags.DEFINE_list("moved", ["8", "64", "256"], "Blocks that move at once.")
NUM_BLOCKS = flags.DEFINE_integer("num_blocks", 320, "Of a pool.", lower_bound=2)
DTYPE = flags.DEFINE_enum(
    "dtype", "float32", ["float32", "uint16", "uint8"], "Of pools; bits of 16, 8 as stored."
)
ROUNDS = flags.DEFINE_integer("rounds", 9, "Timed calls of each.", lower_bound=1)
OUT = flags.DEFINE_string("out", None, "A file that rows are added to.")

BLOCK_AXIS = {"layer_major": 1, "block_major": 0}
OPS = ("swap_out", "swap_in", "read")


class Shape(NamedTuple):
    """Of a pool, without its number of blocks."""

    layers: int
    block_size: int
    rows: int
    dim: int

    def pool(self, layout: str, num_blocks: int) -> tuple[int, ...]:
        lead = [self.layers]
        lead.insert(BLOCK_AXIS[layout], num_blocks)
        return (*lead, self.block_size, self.rows, self.dim)


def parse_shape(text: str) -> Shape:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != len(Shape._fields) or min(numbers) < 1:
        raise app.UsageError(f"--pools={text} must be L,B,R,D, each at least 1.")
    return Shape(*numbers)


def ranges_of_block(array: np.ndarray, axis: int) -> tuple[int, int]:
    """Contiguous ranges of memory that one block takes, and the bytes of each.

    Args:
      axis: of the blocks.
    """
    block = array[(slice(None),) * axis + (0,)]
    contiguous = block.itemsize
    ranges = block.size
    for size, stride in zip(reversed(block.shape), reversed(block.strides), strict=True):
        if stride != contiguous:
            break
        contiguous *= size
        ranges //= size
    return ranges, contiguous


def make_runs(shape: Shape, layout: str, blocks: np.ndarray) -> dict[str, Callable]:
    """A call for each of OPS that returns the numbers it moved, once they are there."""
    axis = BLOCK_AXIS[layout]
    before = (slice(None),) * axis
    size = (NUM_BLOCKS.value, shape.layers, *shape.pool(layout, 1)[2:])
    numbers = np.arange(np.prod(size), dtype=np.uint32).reshape(size) % 1021
    pools = [jnp.asarray(np.moveaxis(numbers, 0, axis).astype(DTYPE.value))]
    index, layer = jnp.asarray(blocks), jnp.int32(shape.layers // 2)
    swap_out = jax.jit(lambda pool, blocks: pool[(*before, blocks)])
    swap_in = jax.jit(
        lambda pool, blocks, moved: pool.at[(*before, blocks)].set(moved), donate_argnums=0
    )
    read = jax.jit(
        lambda pool, blocks, layer: pool[(layer, blocks) if axis else (blocks, layer)]
    )
    moved = jax.block_until_ready(swap_out(pools[0], index))

    def put():
        pools.append(swap_in(pools.pop(), index, moved))  # donated: there is one pool
        return jax.block_until_ready(pools[0])

    return {
        "swap_out": lambda: jax.block_until_ready(swap_out(pools[0], index)),
        "swap_in": put,
        "read": lambda: jax.block_until_ready(read(pools[0], index, layer)),
    }


def measure(shape: Shape, num_moved: int) -> dict[str, dict[str, float]]:
    """Median milliseconds of each op in both layouts, after a comparison of results.

    Raises:
      ArithmeticError: the layouts do not hold the same.
    """
    rng = np.random.default_rng(0)
    blocks = rng.permutation(np.arange(1, NUM_BLOCKS.value, dtype=np.int32))[:num_moved]
    runs = {layout: make_runs(shape, layout, blocks) for layout in BLOCK_AXIS}
    median_ms = {}
    for op in OPS:
        first, second = (np.asarray(runs[layout][op]()) for layout in BLOCK_AXIS)
        if not np.array_equal(first, second if op == "read" else second.swapaxes(0, 1)):
            raise ArithmeticError(f"{shape}: {op} differs between the layouts.")
        del first, second  # views, which would keep a pool from being donated
        seconds = benchmarking.interleaved(
            {layout: runs[layout][op] for layout in BLOCK_AXIS},
            ROUNDS.value,
            benchmarking.make_evict(jax.devices()[0].platform),
        )
        median_ms[op] = {name: 1e3 * statistics.median(s) for name, s in seconds.items()}
    return median_ms


def make_row(shape: Shape, num_moved: int) -> dict:
    """What is counted and what is measured of one problem."""
    dtype = np.dtype(DTYPE.value)
    counted = {
        layout: ranges_of_block(np.empty(shape.pool(layout, 2), dtype), axis)
        for layout, axis in BLOCK_AXIS.items()
    }
    median_ms = measure(shape, num_moved)
    return {
        **shape._asdict(),
        "num_blocks": NUM_BLOCKS.value,
        "dtype": dtype.name,
        "moved_blocks": num_moved,
        "ranges_per_block": {name: ranges for name, (ranges, _) in counted.items()},
        "bytes_per_range": {name: nbytes for name, (_, nbytes) in counted.items()},
        "bytes_per_block": int(np.prod(shape)) * dtype.itemsize,
        "median_ms": median_ms,
        "ratio": {
            op: ms["layer_major"] / ms["block_major"] for op, ms in median_ms.items()
        },
    }


HEADER = (
    "      L,B,R,D  moved     ranges/block     bytes/range        out ms ratio"
    "       in ms ratio     read ms ratio"
)


def line_of(row: dict) -> str:
    """Both layouts' numbers, layers first / blocks first."""
    shape = ",".join(str(row[name]) for name in Shape._fields)
    parts = [f"{shape:>13} {row['moved_blocks']:>6}"]
    for key in ("ranges_per_block", "bytes_per_range"):
        parts.append("{layer_major}/{block_major}".format(**row[key]).rjust(16))
    for op in OPS:
        ms = "{layer_major:.2f}/{block_major:.2f}".format(**row["median_ms"][op])
        parts.append(f"{ms:>13} {row['ratio'][op]:>4.2f}")
    return " ".join(parts)


def main() -> int:
    logging.set_verbosity(logging.WARNING)
    shapes = [parse_shape(text) for text in POOLS.value]
    if not all(
        text.isdigit() and 1 <= int(text) < NUM_BLOCKS.value for text in MOVED.value
    ):
        raise app.UsageError(
            f"--moved={MOVED.value} must be in [1, --num_blocks={NUM_BLOCKS.value})."
        )
    problems = [(shape, int(text)) for shape in shapes for text in MOVED.value]
    info = RunInfo(
        experiment="bench_layouts",
        kind="measured",
        command=" ".join(sys.argv),
        seed=0,
        device=jax.devices()[0].device_kind,
        implementation="xla",
        matmul_precision="default",
        xla_flags="",
    )
    facts = run_facts(info) | {"machine": benchmarking.machine()}
    try:
        if OUT.value:
            prepare_folder(Path(OUT.value).parent)
        print(HEADER)
        for shape, num_moved in tqdm(problems, "layouts", leave=False):
            row = make_row(shape, num_moved)
            tqdm.write(line_of(row), file=sys.stdout)
            if OUT.value:
                append_row(Path(OUT.value), facts | row)
    except ResultsNotWritten as error:
        raise app.UsageError(str(error)) from error
    except ArithmeticError as error:
        print(f"wrong result: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    entry.run(main)

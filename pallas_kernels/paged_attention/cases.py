"""Named attention problems, shared by tests and benchmarks, and inputs for them.

The inputs are as hostile as the contract allows: tables are permuted and name both ends
of the pool, entries past a context hold garbage, two sequences share blocks, and every
position that nobody may read is NaN.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from pallas_kernels.kv_blocks import KVBlocks
from pallas_kernels.layout import kv_layout

NUM_LAYERS = 2
LAYER = 1  # the one that is attended; the other is NaN
GARBAGE_ENTRIES = (-1, 2**30, -(2**31))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One attention problem. Ragged if `query_lens` is given, else decode."""

    name: str
    num_heads: int
    kv_heads: int
    head_dim: int
    value_dim: int | None = None  # of a latent pool
    block_size: int
    context_lens: tuple[int, ...]
    query_lens: tuple[int, ...] | None = None
    window: int | None = None
    chunk_size: int | None = None
    soft_cap: float | None = None
    has_sinks: bool = False
    padding_seqs: int = 0  # rows of the arrays beyond the sequences
    padding_tokens: int = 0

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5

    def options(self) -> dict[str, Any]:
        """Keyword arguments of the ops, but for `implementation`."""
        sinks = jnp.linspace(-1.0, 2.0, self.num_heads) if self.has_sinks else None
        options = dict(
            scale=self.scale, window=self.window, soft_cap=self.soft_cap, sinks=sinks
        )
        # not every implementation takes this one
        return options | ({"chunk_size": self.chunk_size} if self.chunk_size else {})


class Inputs(NamedTuple):
    """Arguments of the ops. `query_starts` and `num_seqs` are None for decode."""

    q: Any
    cache: KVBlocks
    layer: Any
    block_tables: Any
    context_lens: Any
    query_starts: Any
    num_seqs: Any

    def arguments(self) -> tuple[Any, ...]:
        return tuple(self) if self.query_starts is not None else tuple(self)[:5]


def edge_lengths(block_size: int, longest: int) -> tuple[int, ...]:
    """0, 1, around one block, two blocks, long, and a table that is exactly full."""
    full = -(-longest // block_size) * block_size
    return 0, 1, block_size - 1, block_size, block_size + 1, 2 * block_size, longest, full


_SHAPES = (
    dict(name="mha_b1", num_heads=2, kv_heads=2, head_dim=16, block_size=1),
    dict(name="mqa_b2", num_heads=4, kv_heads=1, head_dim=64, block_size=2, window=1),
    dict(name="k3_b3", num_heads=9, kv_heads=3, head_dim=64, block_size=3),
    dict(name="window_b8", num_heads=4, kv_heads=2, head_dim=32, block_size=8, window=21),
    dict(
        name="everything_b16",
        num_heads=4,
        kv_heads=2,
        head_dim=32,
        block_size=16,
        window=150,
        soft_cap=3.0,
        has_sinks=True,
    ),
    dict(
        name="sinks_b64",
        num_heads=6,
        kv_heads=2,
        head_dim=80,
        block_size=64,
        has_sinks=True,
    ),
    dict(
        name="cap_b256", num_heads=2, kv_heads=1, head_dim=128, block_size=256, soft_cap=2.0
    ),
    dict(
        name="mla_b16", num_heads=4, kv_heads=1, head_dim=144, value_dim=128, block_size=16
    ),
)


def _longest(block_size: int) -> int:
    return max(299, 2 * block_size + 45)


def _decode_case(shape: dict[str, Any]) -> Case:
    size = shape["block_size"]
    return Case(context_lens=edge_lengths(size, _longest(size)), **shape)


def _ragged_case(shape: dict[str, Any]) -> Case:
    """Whole prompts, later chunks and decodes in one step."""
    size = shape["block_size"]
    _, _, *lengths, longest, full = edge_lengths(size, _longest(size))
    return Case(
        context_lens=(1, *(max(length, 1) for length in lengths), longest, full, longest),
        query_lens=(1, *(max(length, 1) for length in lengths), 1, 33, 70),
        padding_seqs=2,
        padding_tokens=9,
        **shape,
    )


DECODE_CASES = tuple(_decode_case(shape) for shape in _SHAPES)
RAGGED_CASES = tuple(_ragged_case(shape) for shape in _SHAPES)

# Of the implementations that take chunks.
_CHUNKED = dict(
    name="chunked_b8", num_heads=4, kv_heads=2, head_dim=32, block_size=8, chunk_size=100
)
CHUNKED_CASES = (_decode_case(_CHUNKED), _ragged_case(_CHUNKED))


def make_inputs(
    case: Case, *, seed: int = 0, dtype: Any = "float32", platform: str
) -> Inputs:
    """Normal numbers; `platform` chooses the physical layout, the logical content is
    the same for all.

    The last two sequences share their first block where that block is full in both.
    The contexts need at least two blocks in all.
    """
    rng = np.random.default_rng(seed)
    size = case.block_size
    lengths = np.asarray(case.context_lens)
    counts = -(-lengths // size)
    num_seqs, num_rows = len(lengths), len(lengths) + case.padding_seqs
    num_blocks = int(counts.sum()) + 3  # the null block and two that nobody owns
    inner = rng.permutation(np.arange(2, num_blocks - 1))[: counts.sum() - 2]
    owned = rng.permutation(np.concatenate([inner, [1, num_blocks - 1]]))
    tables = rng.choice(GARBAGE_ENTRIES, (num_rows, int(counts.max()))).astype(np.int32)
    layout = kv_layout(case.kv_heads, case.head_dim, dtype, platform, case.value_dim)
    shape = (NUM_LAYERS, num_blocks, size, layout.num_rows, case.head_dim)
    rows = np.full(shape, np.nan, np.float32)
    for seq, blocks in enumerate(np.split(owned, np.cumsum(counts)[:-1])):
        if 0 < seq == num_seqs - 1 and min(lengths[-2:]) >= size:
            blocks = np.concatenate([tables[seq - 1, :1], blocks[1:]])
        tables[seq, : len(blocks)] = blocks
        position = np.arange(lengths[seq])
        content = rng.standard_normal((len(position), *rows.shape[3:]), np.float32)
        rows[LAYER, blocks[position // size], position % size] = content

    cache = KVBlocks.of_rows(layout, jnp.asarray(rows))
    query_lens = case.query_lens or (1,) * num_seqs
    num_tokens = sum(query_lens) + case.padding_tokens
    starts = np.full(num_rows + 1, sum(query_lens), np.int32)
    starts[: num_seqs + 1] = np.concatenate([[0], np.cumsum(query_lens)])
    context_lens = np.zeros(num_rows, np.int32)
    context_lens[:num_seqs] = lengths
    q = rng.standard_normal((num_tokens, case.num_heads, case.head_dim), np.float32)
    is_ragged = case.query_lens is not None
    return Inputs(
        q=jnp.asarray(q),
        cache=cache,
        layer=jnp.int32(LAYER),
        block_tables=jnp.asarray(tables),
        context_lens=jnp.asarray(context_lens),
        query_starts=jnp.asarray(starts) if is_ragged else None,
        num_seqs=jnp.asarray([num_seqs], jnp.int32) if is_ragged else None,
    )

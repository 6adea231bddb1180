"""The Triton kernel of both attention ops.

The query heads that share a kv head are rows of one matrix, query by query: row f of a
sequence is head f % G of its query f // G. A program takes a tile of such rows, so that
decode (one query) and prefill (many) differ only in how many tiles a sequence has, and
each K and V is read once for all rows of a tile. It walks the keys of its tile in chunks,
whose rows it gathers from the pool by the block table, with an online softmax (Milakov
and Gimelshein 2018); chunks and blocks need not agree, hence any block size.
"""

from functools import partial, reduce
from operator import add
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float32, Int32

from pallas_kernels.layout import KVLayout
from pallas_kernels.paged_attention.gpu_triton.tiling import TritonTiling
from pallas_kernels.triton_calls import MIN_DOT, next_power_of_two, to_float32

# float32: of float32 numbers, without tensor cores. bfloat16: of bfloat16 numbers. split:
# a float32 is the sum of three bfloat16, so that products with bfloat16 are as exact.
Products = Literal["float32", "bfloat16", "split"]


class Tiles(NamedTuple):
    """Arrays with an entry per tile, or in the kernel refs to them."""

    sequence: Array  # a row of the tables
    first_query: Array  # of the sequence
    num_queries: Array  # of the sequence
    first_position: Array  # of its first query
    first_row: Array  # of the tile, among the rows of the sequence


class Refs(NamedTuple):
    """What the kernel reads and writes: whole arrays."""

    tiles: Tiles
    layer: Any
    tables: Any
    q: Any
    kv: Any
    scales: Any  # None unless the pool is quantised
    window: Any  # None if all of the context is seen
    sinks: Any  # None if there are none
    out: Any  # [splits, T, H, Dv]
    lse: Any  # [splits, T, H]


class Part(NamedTuple):
    """Numbers [first, end) of a row, as a tile that is `padded` wide."""

    first: int
    end: int
    padded: int

    @property
    def dims(self) -> Int32[Array, "padded"]:
        return self.first + jnp.arange(self.padded, dtype=jnp.int32)

    def mask(self, rows: Array) -> Array:
        """Of a tile with these rows; not one of its columns, if it has no padding."""
        rows = rows[:, None]
        if self.end - self.first == self.padded:
            return jnp.broadcast_to(rows, (rows.shape[0], self.padded))
        return rows & (self.dims < self.end)[None]


class Problem(NamedTuple):
    """What is known while tracing."""

    layout: KVLayout
    block_size: int
    group: int  # G, query heads per kv head
    scale: float
    soft_cap: float | None
    has_window: bool
    has_sinks: bool
    products: Products
    tiling: TritonTiling

    @property
    def is_latent(self) -> bool:
        """Whether V is part of K's row, the only one of a token."""
        return self.layout.packing == "latent"

    @property
    def value_part(self) -> Part:
        """V, and for a latent row the part of K that is V."""
        width = self.layout.value_dim
        return Part(0, width, next_power_of_two(width, MIN_DOT))

    @property
    def rest_part(self) -> Part | None:
        """What a latent row has beyond V. Tiles are powers of two: 576 is 512 + 64."""
        first, end = self.layout.value_dim, self.layout.head_dim
        if first == end:
            return None
        return Part(first, end, next_power_of_two(end - first, MIN_DOT))


class TileRows(NamedTuple):
    """The rows of a tile: which query and head each is, and what it sees.

    Program ids are among these since an interpreter has none within a loop.
    """

    sequence: Int32[Array, ""]  # a row of the tables
    kv_head: Int32[Array, ""]
    split: Int32[Array, ""]
    is_row: Array
    token: Int32[Array, "rows"]
    head: Int32[Array, "rows"]
    position: Int32[Array, "rows"]
    first_seen: Int32[Array, "rows"]
    start: Int32[Array, ""]  # the tile sees keys [start, end)
    end: Int32[Array, ""]


def _bind(problem: Problem, refs: tuple[Any, ...]) -> Refs:
    """Names the refs, in the order of Refs less those that are None."""
    num_tiles = len(Tiles._fields)
    rest = iter(refs[num_tiles:])
    is_given = dict(
        scales=problem.layout.is_quantized,
        window=problem.has_window,
        sinks=problem.has_sinks,
    )
    names = Refs._fields[1:]
    named = {name: next(rest) if is_given.get(name, True) else None for name in names}
    return Refs(tiles=Tiles(*refs[:num_tiles]), **named)


def _tile_rows(problem: Problem, refs: Refs) -> TileRows:
    tile, kv_head = pl.program_id(0), pl.program_id(1)
    num_queries, first_row = refs.tiles.num_queries[tile], refs.tiles.first_row[tile]
    first_position = refs.tiles.first_position[tile]
    group = jnp.int32(problem.group)
    row = first_row + jnp.arange(problem.tiling.rows_per_tile, dtype=jnp.int32)
    query = lax.div(row, group)
    position = first_position + query
    first_seen, start = jnp.zeros_like(row), jnp.int32(0)
    if problem.has_window:
        window = refs.window[0]
        start = first_position + lax.div(first_row, group) - window + 1
        start = jnp.where(window == 0, 0, jnp.maximum(start, 0))
        first_seen = jnp.where(window == 0, 0, position - window + 1)
    last_row = jnp.minimum(first_row + problem.tiling.rows_per_tile, num_queries * group)
    return TileRows(
        sequence=refs.tiles.sequence[tile],
        kv_head=kv_head,
        split=pl.program_id(2),
        is_row=row < num_queries * group,
        token=refs.tiles.first_query[tile] + query,
        head=kv_head * group + lax.rem(row, group),
        position=position,
        first_seen=first_seen,
        start=start,
        end=first_position + lax.div(last_row - 1, group) + 1,
    )


def choose_products(q_dtype: jnp.dtype, pool_dtype: jnp.dtype) -> Products:
    """int8 and float8_e4m3fn are exact in bfloat16."""
    if pool_dtype == jnp.float32:
        return "float32"
    return "split" if q_dtype == jnp.float32 else "bfloat16"


def terms_of(products: Products, x: Array) -> tuple[Array, ...]:
    """Matrices of the products' dtype whose sum is x, but for bfloat16 products."""
    if products != "split":
        return (x.astype(products),)
    terms = []
    for _ in range(3):  # of 8 of the 24 bits each
        bits = lax.bitcast_convert_type(x, jnp.int32) & jnp.int32(-(1 << 16))
        term = lax.bitcast_convert_type(bits, jnp.float32)
        terms.append(term.astype(jnp.bfloat16))
        x = x - term
    return tuple(terms)


def _product(terms: tuple[Array, ...], b: Array, *, transpose_b: bool = False) -> Array:
    """sum(terms) @ b in float32, of float32 not in the TF32 that Triton prefers."""
    precision = lax.Precision.HIGHEST if b.dtype == jnp.float32 else lax.Precision.DEFAULT
    dimensions = (((1,), (1 if transpose_b else 0,)), ((), ()))
    products = [
        lax.dot_general(
            term, b, dimensions, precision=precision, preferred_element_type=jnp.float32
        )
        for term in reversed(terms)  # the small ones first
    ]
    return reduce(add, products)


class Keys(NamedTuple):
    """A chunk of keys, and where their rows are in the pool."""

    position: Int32[Array, "keys"]
    is_read: Array
    block: Int32[Array, "keys"]
    offset: Int32[Array, "keys"]


def _look_up(refs: Refs, rows: TileRows, entry, is_read) -> Int32[Array, "keys"]:
    """The blocks of entries of a sequence's table."""
    return plgpu.load(refs.tables.at[rows.sequence, entry], mask=is_read, other=0)


def _find_keys(problem: Problem, refs: Refs, rows: TileRows, chunk: Array) -> Keys:
    """Table entries and pool rows that no row of the tile sees may hold anything: they
    are not loaded."""
    size, tokens = jnp.int32(problem.block_size), problem.tiling.tokens_per_chunk
    position = chunk * tokens + jnp.arange(tokens, dtype=jnp.int32)
    is_read = (position >= rows.start) & (position < rows.end)
    entry = lax.div(position, size)
    block = _look_up(refs, rows, entry, is_read)
    return Keys(position, is_read, block, position - entry * size)


def _load_rows(problem: Problem, refs: Refs, keys: Keys, row, part: Part) -> Array:
    """K or V of the keys in the dtype of the products; 0 where nothing is read."""
    row = () if problem.is_latent else (row,)
    index = (
        refs.layer[0],
        keys.block[:, None],
        keys.offset[:, None],
        *row,
        part.dims[None],
    )
    other = jnp.zeros((), problem.layout.dtype)
    stored = plgpu.load(refs.kv.at[index], mask=part.mask(keys.is_read), other=other)
    dtype = jnp.float32 if problem.products == "float32" else jnp.bfloat16
    return stored if stored.dtype == dtype else to_float32(stored).astype(dtype)


def _load_scales(refs: Refs, keys: Keys, row) -> Array:
    index = (refs.layer[0], keys.block, keys.offset, row)
    return plgpu.load(refs.scales.at[index], mask=keys.is_read, other=0.0)


class Softmax(NamedTuple):
    """State of an online softmax: largest logit, sum of weights, weighted sum of V."""

    largest: Float32[Array, "rows"]
    total: Float32[Array, "rows"]
    values: Float32[Array, "rows padded"]


def _first_state(problem: Problem, refs: Refs, rows: TileRows) -> Softmax:
    """A sink is a key without a value, which the first split sees."""
    num_rows = problem.tiling.rows_per_tile
    largest = jnp.full((num_rows,), -jnp.inf, jnp.float32)
    total = jnp.zeros((num_rows,), jnp.float32)
    if refs.sinks is not None:
        has_sink = rows.is_row & (rows.position >= 0) & (rows.split == 0)
        largest = plgpu.load(refs.sinks.at[rows.head], mask=has_sink, other=-jnp.inf)
        total = jnp.where(has_sink, 1.0, 0.0)
    values = jnp.zeros((num_rows, problem.value_part.padded), jnp.float32)
    return Softmax(largest, total, values)


def _add_chunk(problem: Problem, refs: Refs, rows: TileRows, q, q_rest, chunk, state):
    """Adds a chunk of keys to the state of the rows."""
    keys = _find_keys(problem, refs, rows, chunk)
    k_row = 2 * rows.kv_head
    v_row = k_row if problem.is_latent else k_row + 1
    k = _load_rows(problem, refs, keys, k_row, problem.value_part)
    v = k
    if not problem.is_latent:
        v = _load_rows(problem, refs, keys, v_row, problem.value_part)
    logits = _product(q, k, transpose_b=True)
    if problem.rest_part is not None:
        k_rest = _load_rows(problem, refs, keys, k_row, problem.rest_part)
        logits += _product(q_rest, k_rest, transpose_b=True)
    logits *= problem.scale
    if refs.scales is not None:
        logits *= _load_scales(refs, keys, k_row)[None]
    if problem.soft_cap is not None:
        logits = problem.soft_cap * jnp.tanh(logits / problem.soft_cap)
    seen = keys.is_read[None] & (keys.position[None] <= rows.position[:, None])
    if problem.has_window:
        seen &= keys.position[None] >= rows.first_seen[:, None]
    logits = jnp.where(seen, logits, -jnp.inf)

    largest = jnp.maximum(state.largest, logits.max(axis=1))
    # -inf - -inf is NaN: a row that has seen nothing yet counts from 0
    base = jnp.where(largest == -jnp.inf, 0.0, largest)
    weights = jnp.exp(logits - base[:, None])
    decay = jnp.exp(state.largest - base)
    total = state.total * decay + weights.sum(axis=1)
    if refs.scales is not None:
        weights *= _load_scales(refs, keys, v_row)[None]
    added = _product(terms_of(problem.products, weights), v)
    return Softmax(largest, total, state.values * decay[:, None] + added)


def _chunk_range(problem: Problem, rows: TileRows) -> tuple[Array, Array]:
    """This split's share of the chunks that the tile sees."""
    tokens = jnp.int32(problem.tiling.tokens_per_chunk)
    first = lax.div(rows.start, tokens)
    end = lax.div(rows.end + (tokens - 1), tokens)
    if problem.tiling.num_splits == 1:
        return first, end
    num_splits = jnp.int32(problem.tiling.num_splits)
    share = lax.div(end - first + (num_splits - 1), num_splits)
    first = first + rows.split * share
    return first, jnp.minimum(first + share, end)


def paged_attention_kernel(problem: Problem, *refs) -> None:
    """One tile of rows, one kv head, one of the splits of the keys."""
    refs = _bind(problem, refs)
    rows = _tile_rows(problem, refs)

    def load_q(part: Part | None) -> tuple[Array, ...]:
        if part is None:
            return ()
        index = (rows.token[:, None], rows.head[:, None], part.dims[None])
        q = plgpu.load(refs.q.at[index], mask=part.mask(rows.is_row), other=0.0)
        return terms_of(problem.products, q)

    value_part = problem.value_part
    q, q_rest = load_q(value_part), load_q(problem.rest_part)
    first, end = _chunk_range(problem, rows)
    largest, total, values = lax.fori_loop(
        first,
        end,
        partial(_add_chunk, problem, refs, rows, q, q_rest),
        _first_state(problem, refs, rows),
    )
    is_empty = total == 0.0
    total = jnp.where(is_empty, 1.0, total)
    lse = jnp.where(is_empty, -jnp.inf, largest + jnp.log(total))
    out = (values / total[:, None]).astype(refs.out.dtype)
    index = (rows.split, rows.token[:, None], rows.head[:, None])
    mask = value_part.mask(rows.is_row)
    plgpu.store(refs.out.at[(*index, value_part.dims[None])], out, mask=mask)
    index = (rows.split, rows.token, rows.head)
    plgpu.store(refs.lse.at[index], lse, mask=rows.is_row)

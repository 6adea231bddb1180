"""Both attention ops in portable XLA: tiles of queries walk their tables in chunks.

A tile is a run of queries of one sequence; decode has tiles of one. Each tile reads the
chunks of its own table from the first position that any of its queries sees to its last
query, with an online softmax (Milakov and Gimelshein 2018) in float32, so the work
follows the contexts and not the width of the tables, and nothing as large as the pool
is made.

On CPU the tiles run one after the other: walking all sequences together was no faster on
equal lengths, costs every sequence the longest context on mixed ones, and one tile's
chunk stays in cache. There, a tile with a single query takes a path of its own, so that
decodes in a mixed step do not pay for a whole tile. Elsewhere, where parallelism counts,
tiles run in batches.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32

from pallas_kernels.layout import KVBlocks
from pallas_kernels.paged_attention.tiling import Tiling, decode_tiling, ragged_tiling

TILES_PER_BATCH = 64  # off CPU; bounds the gathered chunks held at once


class Tile(NamedTuple):
    """Queries [first_query, first_query + num_queries), the first of them at
    `first_position` of its sequence. Scalars, or one entry per tile."""

    sequence: Int32[Array, "*tiles"]
    first_query: Int32[Array, "*tiles"]
    num_queries: Int32[Array, "*tiles"]
    first_position: Int32[Array, "*tiles"]


class Softmax(NamedTuple):
    """State of an online softmax: largest logit, sum of weights, weighted sum of V."""

    largest: Float[Array, "K rows"]
    total: Float[Array, "K rows"]
    values: Float[Array, "K rows D"]


def _accumulate(
    state: Softmax, logits: Float[Array, "K rows C"], v: Float[Array, "K C D"]
) -> Softmax:
    """Adds a chunk of keys; logits of keys that a row does not see are -inf."""
    largest = jnp.maximum(state.largest, logits.max(axis=-1))
    # -inf - -inf is NaN: a row that has seen nothing yet counts from 0
    base = jnp.where(jnp.isneginf(largest), 0, largest)
    weights = jnp.exp(logits - base[..., None])
    decay = jnp.exp(state.largest - base)
    return Softmax(
        largest=largest,
        total=state.total * decay + weights.sum(axis=-1),
        values=state.values * decay[..., None] + jnp.einsum("krc,kcd->krd", weights, v),
    )


def _finish(
    state: Softmax, sinks: Float[Array, "K rows"] | None
) -> tuple[Float[Array, "K rows D"], Float[Array, "K rows"]]:
    """Divides by the sum of weights. Rows that saw no key give 0 and lse = -inf."""
    largest = state.largest if sinks is None else jnp.maximum(state.largest, sinks)
    is_empty = state.total == 0
    base = jnp.where(is_empty, 0, largest)
    scale = jnp.exp(jnp.where(is_empty, 0, state.largest) - base)
    total = jnp.where(is_empty, 1, state.total * scale)
    if sinks is not None:
        total += jnp.where(is_empty, 0, jnp.exp(sinks - base))
    out = state.values * (scale / total)[..., None]
    return out, jnp.where(is_empty, -jnp.inf, base + jnp.log(total))


def _attend_tile(
    q: Float[Array, "Q H D"],
    tile: Tile,
    cache: KVBlocks,
    layer: Int32[Array, ""] | int,
    block_tables: Int32[Array, "S entries"],
    *,
    blocks_per_chunk: int,
    scale: float,
    window: Int32[Array, ""] | int | None,
    soft_cap: float | None,
    sinks: Float[Array, "H"] | None,
) -> tuple[Float[Array, "Q H D"], Float[Array, "Q H"]]:
    """Attention of one tile; rows from num_queries on see nothing and give 0.

    The tables are padded to a multiple of `blocks_per_chunk` entries.
    """
    layout, size = cache.layout, cache.block_size
    num_rows, num_heads, head_dim = q.shape
    kv_heads = layout.kv_heads
    groups = num_heads // kv_heads
    chunk_tokens = blocks_per_chunk * size

    def to_rows(x):  # [Q, H, ...] -> [K, Q·G, ...]: a row is a query of one head
        x = x.reshape(num_rows, kv_heads, groups, *x.shape[2:])
        return x.swapaxes(0, 1).reshape(kv_heads, num_rows * groups, *x.shape[3:])

    def from_rows(x):
        x = x.reshape(kv_heads, num_rows, groups, *x.shape[2:]).swapaxes(0, 1)
        return x.reshape(num_rows, num_heads, *x.shape[3:])

    query = jnp.arange(num_rows, dtype=jnp.int32).repeat(groups)
    position = tile.first_position + query
    first_seen = jnp.zeros_like(position)
    if window is not None:
        first_seen = jnp.maximum(position - window + 1, 0)
        first_seen = jnp.where(jnp.equal(window, 0), 0, first_seen)
    # the tile reads [start, end) and row r sees [first_seen[r], end_seen[r])
    end_seen = jnp.where(query < tile.num_queries, position + 1, 0)
    start = first_seen[0]
    end = tile.first_position + tile.num_queries
    q_rows = to_rows(q.astype(jnp.float32) * scale)

    def add_chunk(chunk, state: Softmax) -> Softmax:
        entries = chunk * blocks_per_chunk + jnp.arange(blocks_per_chunk, dtype=jnp.int32)
        blocks = lax.dynamic_slice(
            block_tables, (tile.sequence, entries[0]), (1, blocks_per_chunk)
        )[0]
        # entries of which nothing is read may hold anything, also no block at all
        is_read = (entries * size < end) & ((entries + 1) * size > start)
        stored = cache.kv[layer, jnp.where(is_read, blocks, 0)]
        k, v = (
            x.reshape(chunk_tokens, kv_heads, head_dim).swapaxes(0, 1).astype(jnp.float32)
            for x in layout.split(stored)
        )
        key = chunk * chunk_tokens + jnp.arange(chunk_tokens, dtype=jnp.int32)
        v = jnp.where(((key >= start) & (key < end))[:, None], v, 0)  # 0 · NaN is NaN
        logits = jnp.einsum("krd,kcd->krc", q_rows, k)
        if soft_cap is not None:
            logits = soft_cap * jnp.tanh(logits / soft_cap)
        seen = (key >= first_seen[:, None]) & (key < end_seen[:, None])
        return _accumulate(state, jnp.where(seen, logits, -jnp.inf), v)

    shape = q_rows.shape[:2]
    state = lax.fori_loop(
        lax.div(start, jnp.int32(chunk_tokens)),
        lax.div(end + (chunk_tokens - 1), jnp.int32(chunk_tokens)),
        add_chunk,
        Softmax(
            largest=jnp.full(shape, -jnp.inf),
            total=jnp.zeros(shape),
            values=jnp.zeros(q_rows.shape),
        ),
    )
    if sinks is not None:
        sinks = to_rows(jnp.broadcast_to(sinks.astype(jnp.float32), q.shape[:2]))
    out, lse = _finish(state, sinks)
    return from_rows(out).astype(q.dtype), from_rows(lse)


def _pad_tables(
    block_tables: Int32[Array, "S P"], blocks_per_chunk: int
) -> Int32[Array, "S entries"]:
    missing = -block_tables.shape[1] % blocks_per_chunk
    return jnp.pad(block_tables, ((0, 0), (0, missing))) if missing else block_tables


def by_loop(
    attend: Callable[..., tuple[Array, Array]],
    q: Float[Array, "T H D"],
    tiles: Tile,
    num_tiles: Int32[Array, ""] | int,
    queries_per_tile: int,
) -> tuple[Float[Array, "T H D"], Float[Array, "T H"]]:
    """Runs `num_tiles` tiles one after the other.

    Tiles are in the order of their queries and write whole tiles, so that the rows past
    a tile's own queries are those of later tiles, or of no tile and then empty.
    """
    num_tokens, num_heads, _ = q.shape
    padding = ((0, queries_per_tile - 1), (0, 0), (0, 0))
    q = jnp.pad(q, padding)

    def attend_rows(tile: Tile, num_rows: int):
        rows = lax.dynamic_slice_in_dim(q, tile.first_query, num_rows)
        out, lse = attend(rows, tile)
        missing = queries_per_tile - num_rows
        return (
            jnp.pad(out, ((0, missing), (0, 0), (0, 0))),
            jnp.pad(lse, ((0, missing), (0, 0)), constant_values=-jnp.inf),
        )

    def run_tile(i, carry):
        tile = jax.tree.map(lambda x: x[i], tiles)
        if queries_per_tile == 1:
            out, lse = attend_rows(tile, 1)
        else:
            out, lse = lax.cond(
                tile.num_queries <= 1,
                partial(attend_rows, num_rows=1),
                partial(attend_rows, num_rows=queries_per_tile),
                tile,
            )
        return (
            lax.dynamic_update_slice_in_dim(carry[0], out, tile.first_query, 0),
            lax.dynamic_update_slice_in_dim(carry[1], lse, tile.first_query, 0),
        )

    empty = (jnp.zeros_like(q), jnp.full(q.shape[:2], -jnp.inf))
    out, lse = lax.fori_loop(0, num_tiles, run_tile, empty)
    return out[:num_tokens], lse[:num_tokens]


def by_batch(
    attend: Callable[..., tuple[Array, Array]],
    q: Float[Array, "T H D"],
    tiles: Tile,
    num_tiles: Int32[Array, ""] | int,
    queries_per_tile: int,
) -> tuple[Float[Array, "T H D"], Float[Array, "T H"]]:
    """Runs tiles side by side; those from `num_tiles` on have no queries."""
    del num_tiles
    num_tokens = q.shape[0]
    row = jnp.arange(queries_per_tile, dtype=jnp.int32)
    rows = tiles.first_query[:, None] + row

    def run_tile(args):
        tile, tile_rows = args
        return attend(q.at[tile_rows].get(mode="clip"), tile)

    out, lse = lax.map(run_tile, (tiles, rows), batch_size=TILES_PER_BATCH)
    # one past the end is dropped
    target = jnp.where(row < tiles.num_queries[:, None], rows, num_tokens)
    return (
        jnp.zeros_like(q).at[target].set(out, mode="drop"),
        jnp.full(q.shape[:2], -jnp.inf).at[target].set(lse, mode="drop"),
    )


def _by_platform(attend, q, tiles, num_tiles, queries_per_tile):
    return lax.platform_dependent(
        q,
        tiles,
        num_tiles,
        cpu=lambda q, tiles, count: by_loop(attend, q, tiles, count, queries_per_tile),
        default=lambda q, tiles, count: by_batch(attend, q, tiles, count, queries_per_tile),
    )


def paged_attention_xla(
    q: Float[Array, "S H D"],
    cache: KVBlocks,
    layer: Int32[Array, ""] | int,
    block_tables: Int32[Array, "S P"],
    context_lens: Int32[Array, "S"],
    *,
    tiling: Tiling | None,
    run=_by_platform,
    **options,
) -> tuple[Float[Array, "S H D"], Float[Array, "S H"]]:
    """See `pallas_kernels.paged_attention.paged_attention`."""
    tiling = tiling or decode_tiling(cache.block_size, block_tables.shape[1])
    block_tables = _pad_tables(block_tables, tiling.blocks_per_chunk)
    sequence = jnp.arange(q.shape[0], dtype=jnp.int32)
    tiles = Tile(
        sequence=sequence,
        first_query=sequence,
        num_queries=jnp.minimum(context_lens, 1),
        first_position=jnp.maximum(context_lens - 1, 0),
    )

    attend = partial(
        _attend_tile,
        cache=cache,
        layer=layer,
        block_tables=block_tables,
        blocks_per_chunk=tiling.blocks_per_chunk,
        **options,
    )
    return run(attend, q, tiles, jnp.int32(q.shape[0]), 1)


def ragged_tiles(
    query_starts: Int32[Array, "S1"],
    context_lens: Int32[Array, "S"],
    num_seqs: Int32[Array, "1"],
    num_tokens: int,
    queries_per_tile: int,
) -> tuple[Tile, Int32[Array, ""]]:
    """Cuts each sequence's queries into tiles, in order; also returns how many.

    Arrays have room for floor(T / queries_per_tile) + S tiles, the most there can be;
    tiles past the returned count have no queries.
    """
    num_rows = context_lens.shape[0]
    size = jnp.int32(queries_per_tile)
    lengths = query_starts[1:] - query_starts[:-1]
    lengths = jnp.where(jnp.arange(num_rows) < num_seqs[0], lengths, 0)
    tile_ends = jnp.cumsum(lax.div(lengths + (size - 1), size), dtype=jnp.int32)
    limit = min(num_tokens, num_tokens // queries_per_tile + num_rows)
    tile = jnp.arange(limit, dtype=jnp.int32)
    sequence = jnp.searchsorted(tile_ends, tile, side="right").astype(jnp.int32)
    is_tile = sequence < num_rows
    sequence = jnp.minimum(sequence, num_rows - 1)
    tiles_of = lax.div(lengths[sequence] + (size - 1), size)
    offset = (tile - (tile_ends[sequence] - tiles_of)) * size
    remaining = lengths[sequence] - offset
    context_start = context_lens[sequence] - lengths[sequence]
    tiles = Tile(
        sequence=sequence,
        first_query=query_starts[sequence] + offset,
        num_queries=jnp.where(is_tile, jnp.minimum(remaining, size), 0),
        first_position=jnp.where(is_tile, context_start + offset, 0),
    )
    return tiles, tile_ends[-1]


def ragged_paged_attention_xla(
    q: Float[Array, "T H D"],
    cache: KVBlocks,
    layer: Int32[Array, ""] | int,
    block_tables: Int32[Array, "S P"],
    context_lens: Int32[Array, "S"],
    query_starts: Int32[Array, "S1"],
    num_seqs: Int32[Array, "1"],
    *,
    tiling: Tiling | None,
    run=_by_platform,
    **options,
) -> tuple[Float[Array, "T H D"], Float[Array, "T H"]]:
    """See `pallas_kernels.paged_attention.ragged_paged_attention`."""
    tiling = tiling or ragged_tiling(cache.block_size, block_tables.shape[1])
    block_tables = _pad_tables(block_tables, tiling.blocks_per_chunk)
    tiles, num_tiles = ragged_tiles(
        query_starts, context_lens, num_seqs, q.shape[0], tiling.queries_per_tile
    )

    attend = partial(
        _attend_tile,
        cache=cache,
        layer=layer,
        block_tables=block_tables,
        blocks_per_chunk=tiling.blocks_per_chunk,
        **options,
    )
    return run(attend, q, tiles, num_tiles, tiling.queries_per_tile)

"""Both attention ops in portable XLA: tiles of queries walk their tables in chunks.

A tile is a run of queries of one sequence; decode has tiles of one (`xla_tile`). Nothing
as large as the pool is made, and the work follows the contexts and not the width of the
tables.

On CPU the tiles run one after the other: walking all sequences together was no faster on
equal lengths, costs every sequence the longest context on mixed ones, and one tile's
chunk stays in cache. There, a tile with a single query takes a path of its own, so that
decodes in a mixed step do not pay for a whole tile. Elsewhere, where parallelism counts,
tiles run in batches.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32

from pallas_kernels.kv_blocks import KVBlocks
from pallas_kernels.paged_attention.tiling import (
    EXPANDED_QUERIES_PER_TILE,
    RAGGED_QUERIES_PER_TILE,
    Tiling,
    decode_tiling,
    ragged_tiling,
)
from pallas_kernels.paged_attention.xla_tile import Tile, attend_tile, value_dim

TILES_PER_BATCH = 64  # off CPU; bounds the gathered chunks held at once


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
    num_values: int,
) -> tuple[Float[Array, "T H Dv"], Float[Array, "T H"]]:
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

    empty = (
        jnp.zeros((*q.shape[:2], num_values), q.dtype),
        jnp.full(q.shape[:2], -jnp.inf),
    )
    out, lse = lax.fori_loop(0, num_tiles, run_tile, empty)
    return out[:num_tokens], lse[:num_tokens]


def by_batch(
    attend: Callable[..., tuple[Array, Array]],
    q: Float[Array, "T H D"],
    tiles: Tile,
    num_tiles: Int32[Array, ""] | int,
    queries_per_tile: int,
    num_values: int,
) -> tuple[Float[Array, "T H Dv"], Float[Array, "T H"]]:
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
        jnp.zeros((*q.shape[:2], num_values), q.dtype).at[target].set(out, mode="drop"),
        jnp.full(q.shape[:2], -jnp.inf).at[target].set(lse, mode="drop"),
    )


def _by_platform(attend, q, tiles, num_tiles, queries_per_tile, num_values):
    sizes = dict(queries_per_tile=queries_per_tile, num_values=num_values)
    return lax.platform_dependent(
        q,
        tiles,
        num_tiles,
        cpu=lambda q, tiles, count: by_loop(attend, q, tiles, count, **sizes),
        default=lambda q, tiles, count: by_batch(attend, q, tiles, count, **sizes),
    )


def paged_attention_xla(
    q: Float[Array, "S H D"],
    cache: KVBlocks,
    layer: Int32[Array, ""] | int,
    block_tables: Int32[Array, "S P"],
    context_lens: Int32[Array, "S"],
    *,
    tiling: Tiling | None,
    device_kind: str | None = None,
    run=_by_platform,
    **options,
) -> tuple[Float[Array, "S H Dv"], Float[Array, "S H"]]:
    """See `pallas_kernels.paged_attention.paged_attention`."""
    del device_kind  # one tiling serves all
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
        attend_tile,
        cache=cache,
        layer=layer,
        block_tables=block_tables,
        blocks_per_chunk=tiling.blocks_per_chunk,
        **options,
    )
    return run(attend, q, tiles, jnp.int32(q.shape[0]), 1, cache.layout.value_dim)


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
    device_kind: str | None = None,
    expand=None,
    run=_by_platform,
    **options,
) -> tuple[Float[Array, "T H Dv"], Float[Array, "T H"]]:
    """See `pallas_kernels.paged_attention.ragged_paged_attention`."""
    del device_kind
    if tiling is None:
        queries = EXPANDED_QUERIES_PER_TILE if expand else RAGGED_QUERIES_PER_TILE
        tiling = ragged_tiling(cache.block_size, block_tables.shape[1], queries)
    block_tables = _pad_tables(block_tables, tiling.blocks_per_chunk)
    tiles, num_tiles = ragged_tiles(
        query_starts, context_lens, num_seqs, q.shape[0], tiling.queries_per_tile
    )

    attend = partial(
        attend_tile,
        cache=cache,
        layer=layer,
        block_tables=block_tables,
        blocks_per_chunk=tiling.blocks_per_chunk,
        expand=expand,
        **options,
    )
    num_values = value_dim(cache.layout, expand)
    return run(attend, q, tiles, num_tiles, tiling.queries_per_tile, num_values)

"""Cuts the rows of a batch into tiles for the Hopper kernel.

A sequence has G rows per query, one for each head that shares a kv head. Its rows begin
at a multiple of 8 in the kernel's array of queries, since TMA copies tiles of 8 rows; its
results begin a tile of their own.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int32

from pallas_kernels.paged_attention.gpu.tiling import GPU_TMA_ROWS


class RowTiles(NamedTuple):
    """One entry per tile, in the order of the kernel's tile map."""

    sequence: Int32[Array, "tiles"]
    query_row: Int32[Array, "tiles"]  # the first, in the kernel's array of queries
    first_row: Int32[Array, "tiles"]  # G · position of query 0, plus rows before the tile
    num_rows: Int32[Array, "tiles"]


class RaggedRows(NamedTuple):
    """Rows of q are numbered token · G + head of the group."""

    tiles: RowTiles
    row_of_query: Int32[Array, "rows"]  # of q, for each row of the kernel's queries
    row_of_result: Int32[Array, "TG"]  # for each row of q; past the end if it has none


def cut_decode(
    context_lens: Int32[Array, "S"], groups: int, tile_rows: int
) -> tuple[RowTiles, int]:
    """One query per sequence, its last token. Also returns the rows that each sequence
    takes in the kernel's array of queries."""
    padded = -(-groups // GPU_TMA_ROWS) * GPU_TMA_ROWS
    per_sequence = -(-groups // tile_rows)
    tile = jnp.arange(context_lens.shape[0] * per_sequence, dtype=jnp.int32)
    sequence, within = jnp.divmod(tile, jnp.int32(per_sequence))
    offset = within * tile_rows
    length = context_lens[sequence]
    tiles = RowTiles(
        sequence=sequence,
        query_row=sequence * padded + offset,
        first_row=(length - 1) * groups + offset,
        num_rows=jnp.where(length > 0, jnp.minimum(groups - offset, tile_rows), 0),
    )
    return tiles, padded


def cut_ragged(
    query_starts: Int32[Array, "S1"],
    context_lens: Int32[Array, "S"],
    num_seqs: Int32[Array, "1"],
    num_tokens: int,
    groups: int,
    tile_rows: int,
) -> RaggedRows:
    """Runs of queries. There is room for the most tiles and rows that T tokens of S
    sequences can need; those past the last have no rows."""
    num_seqs_most, num_rows = context_lens.shape[0], num_tokens * groups
    starts = query_starts * groups
    is_sequence = jnp.arange(num_seqs_most) < num_seqs[0]
    lengths = jnp.where(is_sequence, starts[1:] - starts[:-1], 0)
    padded = _ceil_div(lengths, GPU_TMA_ROWS) * GPU_TMA_ROWS
    padded_ends = jnp.cumsum(padded, dtype=jnp.int32)
    padded_starts = padded_ends - padded
    tile_counts = _ceil_div(lengths, tile_rows)
    tile_ends = jnp.cumsum(tile_counts, dtype=jnp.int32)
    tile_starts = tile_ends - tile_counts

    tile = jnp.arange(num_rows // tile_rows + num_seqs_most, dtype=jnp.int32)
    sequence = _find(tile_ends, tile)
    offset = (tile - tile_starts[sequence]) * tile_rows
    remaining = jnp.clip(lengths[sequence] - offset, 0, tile_rows)
    before = context_lens[sequence] * groups - lengths[sequence]
    tiles = RowTiles(
        sequence=sequence,
        query_row=jnp.where(remaining > 0, padded_starts[sequence] + offset, 0),
        first_row=jnp.where(remaining > 0, before + offset, 0),
        num_rows=remaining,
    )

    # the last tile reads a whole one
    count = -(-num_rows // GPU_TMA_ROWS) + num_seqs_most + tile_rows // GPU_TMA_ROWS
    row = jnp.arange(count * GPU_TMA_ROWS, dtype=jnp.int32)
    sequence = _find(padded_ends, row)
    row_of_query = starts[sequence] + row - padded_starts[sequence]

    row = jnp.arange(num_rows, dtype=jnp.int32)
    sequence = _find(starts[1:], row)
    row_of_result = tile_starts[sequence] * tile_rows + row - starts[sequence]
    return RaggedRows(
        tiles=tiles,
        row_of_query=jnp.clip(row_of_query, 0, num_rows - 1),
        row_of_result=jnp.where(
            row < starts[num_seqs[0]], row_of_result, tile.shape[0] * tile_rows
        ),
    )


def _ceil_div(x: Int32[Array, "S"], size: int) -> Int32[Array, "S"]:
    return lax.div(x + (size - 1), jnp.int32(size))


def _find(ends: Int32[Array, "S"], index: Int32[Array, "n"]) -> Int32[Array, "n"]:
    """Which of the runs that end at `ends` holds an index; the last if none does."""
    # one fused comparison: a search would be a loop of small programs
    found = jnp.searchsorted(ends, index, side="right", method="compare_all")
    return jnp.minimum(found.astype(jnp.int32), ends.shape[0] - 1)

"""Paged attention in portable XLA: an online softmax over chunks of the block table.

A chunk is as many blocks as hold about `CHUNK_TOKENS` positions, so that the work per
gather does not depend on the block size. Only chunks that some query of the batch sees
are visited: the cost follows the contexts and not the width of the table, and
temporaries are those of one chunk.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Float32, Int32

from pallas_kernels.layout import KVBlocks

CHUNK_TOKENS = 128
TILE = 16  # queries of one sequence that walk its table together
TILES_AT_ONCE = 8


def attend_decode(
    q: Float[Array, "S H D"],
    cache: KVBlocks,
    layer: Int32[Array, ""],
    block_tables: Int32[Array, "S P"],
    context_lens: Int32[Array, "S"],
    *,
    scale: float,
    window: Int32[Array, ""] | None,
    soft_cap: float | None,
    sinks: Float[Array, "H"] | None,
) -> tuple[Float[Array, "S H D"], Float32[Array, "S H"]]:
    """One query per sequence, the last of its context; all walk together."""
    out, lse = _walk(
        q[:, None],
        context_lens[:, None] - 1,
        cache,
        layer,
        block_tables,
        scale=scale,
        window=window,
        soft_cap=soft_cap,
        sinks=sinks,
    )
    return out[:, 0].astype(q.dtype), lse[:, 0]


def attend_ragged(
    q: Float[Array, "T H D"],
    cache: KVBlocks,
    layer: Int32[Array, ""],
    block_tables: Int32[Array, "S P"],
    context_lens: Int32[Array, "S"],
    query_starts: Int32[Array, "S1"],
    num_seqs: Int32[Array, "1"],
    *,
    scale: float,
    window: Int32[Array, ""] | None,
    soft_cap: float | None,
    sinks: Float[Array, "H"] | None,
) -> tuple[Float[Array, "T H D"], Float32[Array, "T H"]]:
    """Queries in tiles, each of one sequence; a few tiles walk together.

    A sequence of n queries has ceil(n / TILE) tiles, so there are fewer than T / TILE + S.
    """
    num_tokens, num_heads, head_dim = q.shape
    num_rows = block_tables.shape[0]
    is_live = jnp.arange(num_rows) < num_seqs
    lengths = jnp.where(is_live, query_starts[1:] - query_starts[:-1], 0)
    tile_ends = jnp.cumsum((lengths + TILE - 1) // TILE)  # per sequence

    def tiles_from(first: Int32[Array, ""]):
        """Sequence and token indices of tiles [first, first + TILES_AT_ONCE)."""
        tile = first + jnp.arange(TILES_AT_ONCE)
        sequence = jnp.searchsorted(tile_ends, tile, side="right")
        exists = sequence < num_rows
        sequence = jnp.minimum(sequence, num_rows - 1)
        num_before = jnp.where(sequence > 0, tile_ends[sequence - 1], 0)
        offset = (tile - num_before)[:, None] * TILE + jnp.arange(TILE)
        is_query = exists[:, None] & (offset < lengths[sequence][:, None])
        token = query_starts[sequence][:, None] + offset
        before = (context_lens - lengths)[sequence][:, None]
        positions = jnp.where(is_query, before + offset, -1)
        return sequence, jnp.where(is_query, token, num_tokens), positions

    def body(index, results):
        out, lse = results
        sequence, tokens, positions = tiles_from(index * TILES_AT_ONCE)
        tile_out, tile_lse = _walk(
            q[jnp.minimum(tokens, num_tokens - 1)],
            positions,
            cache,
            layer,
            block_tables[sequence],
            scale=scale,
            window=window,
            soft_cap=soft_cap,
            sinks=sinks,
        )
        out = out.at[tokens].set(tile_out.astype(q.dtype), mode="drop")
        return out, lse.at[tokens].set(tile_lse, mode="drop")

    num_rounds = (tile_ends[-1] + TILES_AT_ONCE - 1) // TILES_AT_ONCE
    nothing = (
        jnp.zeros((num_tokens, num_heads, head_dim), q.dtype),
        jnp.full((num_tokens, num_heads), -jnp.inf, jnp.float32),
    )
    return lax.fori_loop(0, num_rounds, body, nothing)


def _walk(
    q: Float[Array, "S M H D"],
    positions: Int32[Array, "S M"],
    cache: KVBlocks,
    layer: Int32[Array, ""],
    block_tables: Int32[Array, "S P"],
    *,
    scale: float,
    window: Int32[Array, ""] | None,
    soft_cap: float | None,
    sinks: Float[Array, "H"] | None,
) -> tuple[Float32[Array, "S M H D"], Float32[Array, "S M H"]]:
    """M queries of each of S sequences over its table; position -1 sees nothing.

    Follows Milakov and Gimelshein (2018): a running maximum, and sums relative to it.
    """
    num_seqs, num_queries, num_heads, head_dim = q.shape
    kv_heads, block_size = cache.layout.kv_heads, cache.block_size
    blocks_per_chunk = max(1, CHUNK_TOKENS // block_size)
    chunk_tokens = blocks_per_chunk * block_size
    tables = jnp.pad(block_tables, ((0, 0), (0, -block_tables.shape[1] % blocks_per_chunk)))
    tables = jnp.clip(tables, 0, cache.num_blocks - 1)  # dead entries may hold anything
    heads = (q.astype(jnp.float32) * scale).reshape(
        num_seqs, num_queries, kv_heads, -1, head_dim
    )
    lowest = jnp.zeros_like(positions)
    if window is not None:
        lowest = jnp.where(window == 0, 0, jnp.maximum(positions - window + 1, 0))

    def body(chunk, sums):
        maximum, total, weighted = sums
        ids = lax.dynamic_slice_in_dim(
            tables, chunk * blocks_per_chunk, blocks_per_chunk, axis=1
        )
        rows = cache.kv.at[layer, ids].get(mode="promise_in_bounds")
        keys, values = cache.layout.to_logical(
            rows.reshape(num_seqs, chunk_tokens, *rows.shape[3:])
        )
        at = chunk * chunk_tokens + jnp.arange(chunk_tokens)
        seen = (at <= positions[..., None]) & (at >= lowest[..., None])  # [S, M, C]
        logits = jnp.einsum("smkgd,sckd->smkgc", heads, keys)
        if soft_cap is not None:
            logits = soft_cap * jnp.tanh(logits / soft_cap)
        logits = jnp.where(seen[:, :, None, None], logits, -jnp.inf)
        values = jnp.where(seen.any(axis=1)[..., None, None], values, 0.0)  # 0 · NaN
        new_maximum = jnp.maximum(maximum, logits.max(axis=-1))
        base = jnp.where(new_maximum == -jnp.inf, 0.0, new_maximum)
        weights = jnp.exp(logits - base[..., None])
        shrink = jnp.exp(maximum - base)
        weighted = weighted * shrink[..., None]
        weighted += jnp.einsum("smkgc,sckd->smkgd", weights, values)
        return new_maximum, total * shrink + weights.sum(axis=-1), weighted

    start = _start(heads.shape[:-1], head_dim, sinks)
    lives = positions >= 0
    first = jnp.where(lives, lowest, jnp.iinfo(jnp.int32).max).min() // chunk_tokens
    end = (positions.max() + chunk_tokens) // chunk_tokens
    maximum, total, weighted = lax.fori_loop(first, end, body, start)
    lives = lives[:, :, None, None]
    out = jnp.where(lives[..., None], weighted / total[..., None], 0.0)
    lse = jnp.where(lives, maximum + jnp.log(total), -jnp.inf)
    return out.reshape(q.shape), lse.reshape(q.shape[:-1])


def _start(
    shape: tuple[int, ...], head_dim: int, sinks: Float[Array, "H"] | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Maximum, sum of weights, weighted sum of values before the first chunk.

    A sink is a logit of its own that adds to the sum and brings no value.
    """
    weighted = jnp.zeros((*shape, head_dim), jnp.float32)
    if sinks is None:
        return jnp.full(shape, -jnp.inf, jnp.float32), jnp.zeros(shape), weighted
    maximum = jnp.broadcast_to(sinks.astype(jnp.float32).reshape(shape[-2:]), shape)
    return maximum, jnp.ones(shape), weighted

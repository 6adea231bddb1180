"""Attention of one tile in portable XLA: a run of queries of one sequence.

A tile reads the chunks of its own table from the first position that any of its queries
sees to its last query, with an online softmax (Milakov and Gimelshein 2018) in float32.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32

from pallas_kernels.kv_blocks import KVBlocks
from pallas_kernels.layout import KVLayout


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
    values: Float[Array, "K rows Dv"]


def _accumulate(
    state: Softmax,
    logits: Float[Array, "K rows C"],
    v: Float[Array, "K C Dv"],
    v_scales: Float[Array, "K C"] | None,
    precision: lax.Precision | None,
) -> Softmax:
    """Adds a chunk of keys; logits of keys that a row does not see are -inf."""
    largest = jnp.maximum(state.largest, logits.max(axis=-1))
    # -inf - -inf is NaN: a row that has seen nothing yet counts from 0
    base = jnp.where(jnp.isneginf(largest), 0, largest)
    weights = jnp.exp(logits - base[..., None])
    decay = jnp.exp(state.largest - base)
    shares = weights if v_scales is None else weights * v_scales[:, None]
    return Softmax(
        largest=largest,
        total=state.total * decay + weights.sum(axis=-1),
        values=state.values * decay[..., None]
        + jnp.einsum("krc,kcd->krd", shares, v, precision=precision),
    )


def _finish(
    state: Softmax, sinks: Float[Array, "K rows"] | None
) -> tuple[Float[Array, "K rows Dv"], Float[Array, "K rows"]]:
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


class Chunk(NamedTuple):
    """K and V of consecutive positions, by head, and the scales of both if quantised."""

    k: Float[Array, "K C D"]
    v: Float[Array, "K C Dv"]
    scales: tuple[Float[Array, "K C"], Float[Array, "K C"]] | None


def _read(cache: KVBlocks, layer, blocks: Int32[Array, "blocks"], expand) -> Chunk:
    """Gathers blocks; with `expand`, rows of latents become K and V of every head."""
    tile = cache.read(layer, blocks)

    def by_head(x):  # [blocks, B, K, ...] -> [K, blocks·B, ...]
        x = x.astype(jnp.float32).reshape(-1, *x.shape[2:])
        return jnp.moveaxis(x, 1, 0)

    k, v = by_head(tile.k), by_head(tile.v)
    scales = None
    if tile.k_scales is not None and tile.v_scales is not None:
        scales = by_head(tile.k_scales), by_head(tile.v_scales)
    if expand is None:
        return Chunk(k, v, scales)
    rows = k[0] if scales is None else k[0] * scales[0][0, :, None]
    k, v = (x.swapaxes(0, 1) for x in expand(rows))
    return Chunk(k, v, None)


def value_dim(layout: KVLayout, expand) -> int:
    """Size of the result per head."""
    if expand is None:
        return layout.value_dim
    rows = jax.ShapeDtypeStruct((1, layout.head_dim), jnp.float32)
    return jax.eval_shape(expand, rows)[1].shape[-1]


def attend_tile(
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
    chunk_size: int | None = None,
    expand=None,
) -> tuple[Float[Array, "Q H Dv"], Float[Array, "Q H"]]:
    """Attention of one tile; rows from num_queries on see nothing and give 0.

    The tables are padded to a multiple of `blocks_per_chunk` entries.
    """
    size = cache.block_size
    num_rows, num_heads, _ = q.shape
    kv_heads = cache.layout.kv_heads if expand is None else num_heads
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
    if chunk_size is not None:
        in_chunk = lax.rem(position, jnp.int32(chunk_size))
        first_seen = jnp.maximum(first_seen, position - in_chunk)
    # the tile reads [start, end) and row r sees [first_seen[r], end_seen[r])
    end_seen = jnp.where(query < tile.num_queries, position + 1, 0)
    start = first_seen[0]
    end = tile.first_position + tile.num_queries
    q_rows = to_rows(q.astype(jnp.float32) * scale)
    # on TPU products would take bfloat16, and XLA round a whole float32 pool to it
    precision = lax.Precision.HIGHEST if cache.kv.dtype == jnp.float32 else None

    def add_chunk(chunk, state: Softmax) -> Softmax:
        entries = chunk * blocks_per_chunk + jnp.arange(blocks_per_chunk, dtype=jnp.int32)
        blocks = lax.dynamic_slice(
            block_tables, (tile.sequence, entries[0]), (1, blocks_per_chunk)
        )[0]
        # entries of which nothing is read may hold anything, also no block at all
        is_read = (entries * size < end) & ((entries + 1) * size > start)
        read = _read(cache, layer, jnp.where(is_read, blocks, 0), expand)
        key = chunk * chunk_tokens + jnp.arange(chunk_tokens, dtype=jnp.int32)
        is_key = (key >= start) & (key < end)
        v = jnp.where(is_key[:, None], read.v, 0)  # 0 · NaN is NaN
        logits = jnp.einsum("krd,kcd->krc", q_rows, read.k, precision=precision)
        v_scales = None
        if read.scales is not None:
            k_scales, v_scales = read.scales
            logits *= k_scales[:, None]
            v_scales = jnp.where(is_key, v_scales, 0)
        if soft_cap is not None:
            logits = soft_cap * jnp.tanh(logits / soft_cap)
        seen = (key >= first_seen[:, None]) & (key < end_seen[:, None])
        logits = jnp.where(seen, logits, -jnp.inf)
        return _accumulate(state, logits, v, v_scales, precision)

    shape = q_rows.shape[:2]
    state = lax.fori_loop(
        lax.div(start, jnp.int32(chunk_tokens)),
        lax.div(end + (chunk_tokens - 1), jnp.int32(chunk_tokens)),
        add_chunk,
        Softmax(
            largest=jnp.full(shape, -jnp.inf),
            total=jnp.zeros(shape),
            values=jnp.zeros((*shape, value_dim(cache.layout, expand))),
        ),
    )
    if sinks is not None:
        sinks = to_rows(jnp.broadcast_to(sinks.astype(jnp.float32), q.shape[:2]))
    out, lse = _finish(state, sinks)
    return from_rows(out).astype(q.dtype), from_rows(lse)

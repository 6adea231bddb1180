"""The specification of both attention ops: each query gathers its whole table."""

import jax
import jax.numpy as jnp
from jax import lax


def _attend_query(
    q,
    position,
    table,
    cache,
    layer,
    *,
    scale,
    window,
    soft_cap,
    sinks,
    chunk_size=None,
    expand=None,
):
    """One query [H, D] at `position` of its sequence (-1: it sees nothing).

    Query head h reads kv head h // G. With a window w it sees (position - w, position],
    with chunks of c those from the last multiple of c on. A sink is one more logit of
    its head, without a value.
    """
    size = cache.block_size
    key_positions = jnp.arange(table.shape[0] * size, dtype=jnp.int32)
    seen = key_positions <= position
    if window is not None:
        seen &= (window == 0) | (key_positions > position - window)
    if chunk_size is not None:
        seen &= key_positions >= position - lax.rem(position, jnp.int32(chunk_size))
    # table entries of which nothing is seen may hold anything, also no block at all
    blocks = jnp.where(seen.reshape(-1, size).any(axis=1), table, 0)
    k, v = _keys_and_values(cache.read(layer, blocks))  # [P·B, K, D]
    if expand is not None:
        k, v = expand(k[:, 0])
    groups = q.shape[0] // k.shape[1]
    k, v = (x.repeat(groups, axis=1) for x in (k, v))
    logits = jnp.einsum("hd,chd->hc", q.astype(jnp.float32), k) * scale
    if soft_cap is not None:
        logits = soft_cap * jnp.tanh(logits / soft_cap)
    logits = jnp.where(seen, logits, -jnp.inf)
    v = jnp.where(seen[:, None, None], v, 0)  # 0 · NaN is NaN
    if sinks is not None:
        logits = jnp.concatenate([logits, sinks.astype(jnp.float32)[:, None]], axis=1)
        v = jnp.concatenate([v, jnp.zeros_like(v[:1])])
    out = jnp.einsum("hc,chd->hd", jax.nn.softmax(logits, axis=1), v)
    lse = jax.nn.logsumexp(logits, axis=1)
    is_empty = position < 0
    return (
        jnp.where(is_empty, 0, out).astype(q.dtype),
        jnp.where(is_empty, -jnp.inf, lse),
    )


def _keys_and_values(tile):
    """All positions of the tile's blocks, in float32."""
    k, v = (x.reshape(-1, *x.shape[2:]).astype(jnp.float32) for x in (tile.k, tile.v))
    if tile.k_scales is None:
        return k, v
    k_scales, v_scales = (x.reshape(len(k), -1, 1) for x in (tile.k_scales, tile.v_scales))
    return k * k_scales, v * v_scales


def paged_attention_reference(q, cache, layer, block_tables, context_lens, **options):
    """See `pallas_kernels.paged_attention.paged_attention`."""

    def attend(query):
        row, position, table = query
        return _attend_query(row, position, table, cache, layer, **options)

    return lax.map(attend, (q, context_lens - 1, block_tables))


def ragged_paged_attention_reference(
    q, cache, layer, block_tables, context_lens, query_starts, num_seqs, **options
):
    """See `pallas_kernels.paged_attention.ragged_paged_attention`."""
    token = jnp.arange(q.shape[0], dtype=jnp.int32)
    is_query = token < query_starts[num_seqs[0]]
    sequence = jnp.searchsorted(query_starts, token, side="right") - 1
    sequence = jnp.where(is_query, sequence, 0)
    # the last query of a sequence is its last token
    position = context_lens[sequence] - (query_starts[sequence + 1] - token)
    return paged_attention_reference(
        q,
        cache,
        layer,
        block_tables[sequence],
        jnp.where(is_query, position + 1, 0),
        **options,
    )

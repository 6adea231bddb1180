"""Decode whose sequences share a prefix: its K and V are read once for all of them.

The prefix and the rest are attended apart and merged through their softmax denominators,
which is exact but for the rounding of each part to q's dtype (Ye et al. 2024, "Cascade
Inference"; Juravsky et al. 2024, "Hydragen"). It pays where the shared blocks are many:
`experiments.bench_cascade` measures from where on.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from pallas_kernels.kv_blocks import KVBlocks
from pallas_kernels.paged_attention.api import (
    check_head_dim,
    check_inputs,
    paged_attention,
)
from pallas_kernels.paged_attention.merging import join_sinks, merge_parts


def cascade_paged_attention(
    q: Float[Array, "S H D"],
    cache: KVBlocks,
    layer: Int32[Array, ""] | int,
    block_tables: Int32[Array, "S P"],
    context_lens: Int32[Array, "S"],
    *,
    shared_blocks: int,
    scale: float,
    soft_cap: float | None = None,
    sinks: Float[Array, "H"] | None = None,
    implementation: str,
    tiling: Any = None,
    device_kind: str | None = None,
) -> Float[Array, "S H Dv"]:
    """As `paged_attention` without a window, where all tables begin with the same blocks.

    Args:
      shared_blocks: how many; all of them full. Each context is at least as long as
        these, or 0: then its table may hold anything.

    Raises:
      ValueError: `shared_blocks` leaves no entry of the tables, or as `paged_attention`.
    """
    if not 1 <= shared_blocks < block_tables.shape[1]:
        raise ValueError(
            f"{shared_blocks=} must be at least 1 and leave an entry of block_tables "
            f"{block_tables.shape}; use paged_attention where nothing is shared."
        )
    check_inputs(q, cache, block_tables, context_lens, None, soft_cap, sinks)
    check_head_dim(q, cache)
    if 0 in q.shape:
        return jnp.zeros((*q.shape[:2], cache.layout.value_dim), q.dtype)
    options: Any = dict(
        scale=scale,
        soft_cap=soft_cap,
        implementation=implementation,
        tiling=tiling,
        device_kind=device_kind,
        return_lse=True,
    )
    num_seqs, num_heads, head_dim = q.shape
    kv_heads = cache.layout.kv_heads
    shared_tokens = shared_blocks * cache.block_size

    def by_kv_head(x, lead: int):  # [lead, H, ...] -> [K, lead, G, ...]
        return x.reshape(lead, kv_heads, -1, *x.shape[2:]).swapaxes(0, 1)

    # one sequence whose kv heads are each read by S·G query heads
    together = by_kv_head(q, num_seqs).reshape(1, num_seqs * num_heads, head_dim)
    prefix, prefix_lse = paged_attention(
        together,
        cache,
        layer,
        block_tables[jnp.argmax(context_lens)][None, :shared_blocks],
        jnp.full(1, shared_tokens, jnp.int32),
        **options,
    )
    shape = (kv_heads, num_seqs, num_heads // kv_heads)
    prefix = prefix.reshape(*shape, -1).swapaxes(0, 1).reshape(num_seqs, num_heads, -1)
    prefix_lse = prefix_lse.reshape(shape).swapaxes(0, 1).reshape(num_seqs, num_heads)
    prefix_lse = jnp.where(context_lens[:, None] == 0, -jnp.inf, prefix_lse)

    rest, rest_lse = paged_attention(
        q,
        cache,
        layer,
        block_tables[:, shared_blocks:],
        jnp.maximum(context_lens - shared_tokens, 0),
        **options,
    )
    out, lse = merge_parts(jnp.stack([prefix, rest]), jnp.stack([prefix_lse, rest_lse]))
    return join_sinks(out, lse, sinks)[0].astype(q.dtype)

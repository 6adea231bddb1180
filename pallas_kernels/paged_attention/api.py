"""`paged_attention` and `ragged_paged_attention`: the contract, once.

K and V of a sequence's position p lie in block `block_tables[s, p // B]` at offset p % B.
Table entries past the context may hold anything; blocks that no table names may hold NaN.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int32

from pallas_kernels.implementations import check_implementation
from pallas_kernels.layout import KVBlocks
from pallas_kernels.paged_attention import reference, xla

Window = int | Int32[Array, ""] | None
Result = Float[Array, "T H D"] | tuple[Float[Array, "T H D"], Float32[Array, "T H"]]


def paged_attention(
    q: Float[Array, "S H D"],
    cache: KVBlocks,
    layer: Int32[Array, ""],
    block_tables: Int32[Array, "S P"],
    context_lens: Int32[Array, "S"],
    *,
    scale: float,
    window: Window = None,
    soft_cap: float | None = None,
    sinks: Float[Array, "H"] | None = None,
    return_lse: bool = False,
    implementation: str,
) -> Result:
    """One query per sequence, the last token of its context (decode).

    A context of 0 gives zeros and a log-sum-exp of -inf.

    Args:
      window: how many of the latest positions a query sees, itself included. None: all.
        A traced scalar may be 0, which also means all.
      soft_cap: logits become cap · tanh(logits / cap).
      sinks: a logit per head that takes weight and gives no value.

    Raises:
      ValueError: shapes disagree, a setting is out of range, or the implementation is
        not offered.
    """
    num_seqs = q.shape[0]
    _check(q, cache, block_tables, context_lens, window, soft_cap, sinks, implementation)
    if num_seqs != block_tables.shape[0]:
        raise ValueError(
            f"q has {num_seqs} queries and block_tables {block_tables.shape[0]} rows; "
            "decode takes one query per sequence."
        )
    settings = _settings(scale, window, soft_cap, sinks)
    args = (q, cache, jnp.asarray(layer), block_tables)
    if implementation == "reference":
        out, lse = reference.attend_tokens(*args, context_lens - 1, **settings)
    else:
        out, lse = xla.attend_decode(*args, context_lens, **settings)
    return (out, lse) if return_lse else out


def ragged_paged_attention(
    q: Float[Array, "T H D"],
    cache: KVBlocks,
    layer: Int32[Array, ""],
    block_tables: Int32[Array, "S P"],
    context_lens: Int32[Array, "S"],
    query_starts: Int32[Array, "S1"],
    num_seqs: Int32[Array, "1"],
    *,
    scale: float,
    window: Window = None,
    soft_cap: float | None = None,
    sinks: Float[Array, "H"] | None = None,
    return_lse: bool = False,
    implementation: str,
) -> Result:
    """Causal attention of ragged queries (prefill chunks and decodes in one batch).

    Sequence s < num_seqs owns queries [query_starts[s], query_starts[s + 1]), the last of
    its `context_lens[s]` tokens. Rows past query_starts[num_seqs] are zero. The other
    arguments and errors are those of `paged_attention`.
    """
    _check(q, cache, block_tables, context_lens, window, soft_cap, sinks, implementation)
    if query_starts.shape[0] != block_tables.shape[0] + 1:
        raise ValueError(
            f"query_starts has {query_starts.shape[0]} entries; {block_tables.shape[0]} "
            "sequences need one more than there are of them."
        )
    settings = _settings(scale, window, soft_cap, sinks)
    if implementation == "xla":
        out, lse = xla.attend_ragged(
            q,
            cache,
            jnp.asarray(layer),
            block_tables,
            context_lens,
            query_starts,
            num_seqs,
            **settings,
        )
    else:
        sequence, positions = _owners(q.shape[0], context_lens, query_starts, num_seqs)
        out, lse = reference.attend_tokens(
            q, cache, jnp.asarray(layer), block_tables[sequence], positions, **settings
        )
    return (out, lse) if return_lse else out


def _owners(
    num_tokens: int,
    context_lens: Int32[Array, "S"],
    query_starts: Int32[Array, "S1"],
    num_seqs: Int32[Array, "1"],
) -> tuple[Int32[Array, "T"], Int32[Array, "T"]]:
    """Sequence and position of each query; position -1 past the last one."""
    token = jnp.arange(num_tokens, dtype=jnp.int32)
    sequence = jnp.searchsorted(query_starts[1:], token, side="right")
    lives = sequence < num_seqs[0]
    sequence = jnp.minimum(sequence, context_lens.shape[0] - 1).astype(jnp.int32)
    positions = context_lens[sequence] - (query_starts[sequence + 1] - token)
    return sequence, jnp.where(lives, positions, -1)


def _settings(scale, window, soft_cap, sinks) -> dict:
    if window is not None:
        window = jnp.asarray(window, jnp.int32)
    return dict(scale=scale, window=window, soft_cap=soft_cap, sinks=sinks)


def _check(
    q, cache, block_tables, context_lens, window, soft_cap, sinks, implementation
) -> None:
    """What can be known while tracing."""
    check_implementation(implementation)
    layout = cache.layout
    _, num_heads, head_dim = q.shape
    if head_dim != layout.head_dim:
        raise ValueError(f"q has {head_dim=}, the cache {layout.head_dim}; use one of them.")
    if num_heads % layout.kv_heads:
        raise ValueError(
            f"{num_heads=} of q must be a multiple of the cache's {layout.kv_heads} kv heads."
        )
    if context_lens.shape[0] != block_tables.shape[0]:
        raise ValueError(
            f"context_lens names {context_lens.shape[0]} sequences, block_tables "
            f"{block_tables.shape[0]}; they must agree."
        )
    if block_tables.shape[1] < 1:
        raise ValueError("block_tables has width 0; a sequence needs ≥ 1 entry.")
    if isinstance(window, int) and window < 1:
        raise ValueError(f"{window=} must be ≥ 1 token; None sees the whole context.")
    if soft_cap is not None and not soft_cap > 0:
        raise ValueError(f"{soft_cap=} must be > 0; None leaves the logits as they are.")
    if sinks is not None and sinks.shape != (num_heads,):
        raise ValueError(f"sinks{list(sinks.shape)} must be [{num_heads}], one per head.")
    if isinstance(block_tables, jax.Array) and block_tables.dtype != jnp.int32:
        raise ValueError(f"block_tables is {block_tables.dtype}; use int32.")

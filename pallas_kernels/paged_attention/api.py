"""The contract of both attention ops, whatever implements them."""

import numpy as np
from jaxtyping import Array, Float, Int32

from pallas_kernels.checks import choose, require_int32
from pallas_kernels.layout import KVBlocks
from pallas_kernels.paged_attention.reference import (
    paged_attention_reference,
    ragged_paged_attention_reference,
)
from pallas_kernels.paged_attention.tiling import Tiling
from pallas_kernels.paged_attention.xla import (
    paged_attention_xla,
    ragged_paged_attention_xla,
)

_DECODE = {"reference": paged_attention_reference, "xla": paged_attention_xla}
_RAGGED = {
    "reference": ragged_paged_attention_reference,
    "xla": ragged_paged_attention_xla,
}
IMPLEMENTATIONS = tuple(_DECODE)

Window = Int32[Array, ""] | int | None


def paged_attention(
    q: Float[Array, "S H D"],
    cache: KVBlocks,
    layer: Int32[Array, ""] | int,
    block_tables: Int32[Array, "S P"],
    context_lens: Int32[Array, "S"],
    *,
    scale: float,
    window: Window = None,
    soft_cap: float | None = None,
    sinks: Float[Array, "H"] | None = None,
    return_lse: bool = False,
    implementation: str,
    tiling: Tiling | None = None,
) -> Float[Array, "S H D"] | tuple[Float[Array, "S H D"], Float[Array, "S H"]]:
    """Attention of one query per sequence, its last token, over the sequence's blocks.

    Position p of sequence s lies in block `block_tables[s, p // B]` at offset p % B.
    Only positions [0, context_lens[s]) are read, and with a window only the last
    `window` of them: the other table entries may hold any value. K and V are read from
    the pool, those of the query's own token included: call `write_kv` first.

    Args:
      scale: factor of q·k.
      window: tokens that a query sees, its own included; None, or a traced 0, for all.
      soft_cap: c, logits become c · tanh(logits / c), before the mask.
      sinks: one logit per query head that joins the softmax without a value.
      return_lse: also return the log of the softmax's denominator (sinks included).
      implementation: one of `IMPLEMENTATIONS`.
      tiling: of `xla`; chosen from the shapes if None.

    Returns:
      Attention in q's dtype, accumulated in float32, and lse [S, H] in float32 if asked
      for. A context of length 0 gives zeros and lse = -inf.

    Raises:
      ValueError: shapes or dtypes that disagree, a static window below 1, an
        implementation that is not offered.
    """
    run = choose(_DECODE, implementation, "paged_attention")
    check_inputs(q, cache, block_tables, context_lens, window, soft_cap, sinks)
    if q.shape[0] != context_lens.shape[0]:
        raise ValueError(
            f"q of shape {q.shape} must have one row per sequence, context_lens has "
            f"{context_lens.shape[0]}; for several queries a sequence use "
            "ragged_paged_attention."
        )
    out, lse = run(
        q,
        cache,
        layer,
        block_tables,
        context_lens,
        scale=scale,
        window=window,
        soft_cap=soft_cap,
        sinks=sinks,
        **_tiling_option(tiling, implementation),
    )
    return (out, lse) if return_lse else out


def ragged_paged_attention(
    q: Float[Array, "T H D"],
    cache: KVBlocks,
    layer: Int32[Array, ""] | int,
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
    tiling: Tiling | None = None,
) -> Float[Array, "T H D"] | tuple[Float[Array, "T H D"], Float[Array, "T H"]]:
    """Causal attention of ragged runs of queries over the blocks of their sequences.

    Sequence s < num_seqs owns queries [query_starts[s], query_starts[s + 1]): the last
    of its `context_lens[s]` tokens. Runs follow each other from query 0 without gaps.
    Prefill chunks and decodes mix freely.
    Everything else is as in `paged_attention`.

    Returns:
      As `paged_attention`, with a row per query. Rows from query_starts[num_seqs] on
      are unspecified, but finite (lse: or -inf).
    """
    run = choose(_RAGGED, implementation, "ragged_paged_attention")
    check_inputs(q, cache, block_tables, context_lens, window, soft_cap, sinks)
    check_ragged(context_lens, query_starts, num_seqs)
    out, lse = run(
        q,
        cache,
        layer,
        block_tables,
        context_lens,
        query_starts,
        num_seqs,
        scale=scale,
        window=window,
        soft_cap=soft_cap,
        sinks=sinks,
        **_tiling_option(tiling, implementation),
    )
    return (out, lse) if return_lse else out


def _tiling_option(tiling: Tiling | None, implementation: str) -> dict[str, Tiling | None]:
    """The reference has no tiles, so it takes no tiling."""
    if implementation != "reference":
        return {"tiling": tiling}
    if tiling is not None:
        raise ValueError(
            f"implementation='reference' has no tiles, got {tiling=}; omit it."
        )
    return {}


def check_inputs(q, cache, block_tables, context_lens, window, soft_cap, sinks) -> None:
    """Raises a ValueError that names what disagrees; looks at shapes and dtypes only."""
    layout = cache.layout
    if q.ndim != 3 or q.shape[2] != layout.head_dim or q.shape[1] % layout.kv_heads:
        raise ValueError(
            f"q of shape {q.shape} must be [queries, H, {layout.head_dim}], H a multiple "
            f"of the pool's kv_heads={layout.kv_heads}."
        )
    if block_tables.ndim != 2 or block_tables.shape[1] < 1:
        raise ValueError(
            f"block_tables of shape {block_tables.shape} must be [S, P] with P ≥ 1."
        )
    if context_lens.shape != block_tables.shape[:1]:
        raise ValueError(
            f"context_lens of shape {context_lens.shape} must have one entry per row of "
            f"block_tables {block_tables.shape}."
        )
    require_int32(block_tables=block_tables, context_lens=context_lens)
    if isinstance(window, (int, np.integer)):
        if window < 1:
            raise ValueError(f"{window=} must be at least 1; pass None for no window.")
    elif window is not None:
        require_int32(window=window)
        if window.shape != ():
            raise ValueError(f"window of shape {window.shape} must be a scalar.")
    if soft_cap is not None and soft_cap <= 0:
        raise ValueError(f"{soft_cap=} must be positive; pass None for no cap.")
    if sinks is not None and sinks.shape != (q.shape[1],):
        raise ValueError(
            f"sinks of shape {sinks.shape} must have one entry per query head, q has "
            f"{q.shape[1]}."
        )


def check_ragged(context_lens, query_starts, num_seqs) -> None:
    """The same for the arrays that only the ragged op has."""
    if query_starts.shape != (context_lens.shape[0] + 1,):
        raise ValueError(
            f"query_starts of shape {query_starts.shape} must have one entry more than "
            f"context_lens {context_lens.shape}."
        )
    if num_seqs.shape != (1,):
        raise ValueError(f"num_seqs of shape {num_seqs.shape} must be [1].")
    require_int32(query_starts=query_starts, num_seqs=num_seqs)

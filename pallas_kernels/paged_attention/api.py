"""The contract of both attention ops, whatever implements them."""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32

from pallas_kernels.checks import choose, require_int32, require_layer
from pallas_kernels.kv_blocks import KVBlocks
from pallas_kernels.paged_attention.tiling import Tiling
from pallas_kernels.paged_attention.xla_tile import value_dim

IMPLEMENTATIONS = {
    name: f"pallas_kernels.paged_attention.{name}"
    for name in ("reference", "xla", "tpu", "gpu", "gpu_triton", "cpu")
}
# What only some implementations take, beyond the options of all.
CHUNKED = ("reference", "xla", "cpu")
EXPANDING = ("reference", "xla")

# Class of the tiles that a caller may choose; without one, there is nothing to choose.
TILINGS = {
    "xla": "Tiling",
    "tpu": "Tiling",
    "gpu": "GpuTiling",
    "gpu_triton": "TritonTiling",
}
QUERY_DTYPES = ("float32", "bfloat16")

Window = Int32[Array, ""] | int | None
# latent rows [C, D] -> K [C, H, Dk] and V [C, H, Dv] of every query head, in float32
Expand = Callable[[Float[Array, "C D"]], tuple[Array, Array]]


def paged_attention(
    q: Float[Array, "S H D"],
    cache: KVBlocks,
    layer: Int32[Array, ""] | int,
    block_tables: Int32[Array, "S P"],
    context_lens: Int32[Array, "S"],
    *,
    scale: float,
    window: Window = None,
    chunk_size: int | None = None,
    soft_cap: float | None = None,
    sinks: Float[Array, "H"] | None = None,
    return_lse: bool = False,
    implementation: str,
    tiling: Any = None,
    device_kind: str | None = None,
) -> Float[Array, "S H Dv"] | tuple[Float[Array, "S H Dv"], Float[Array, "S H"]]:
    """Attention of one query per sequence, its last token, over the sequence's blocks.

    Position p of sequence s lies in block `block_tables[s, p // B]` at offset p % B.
    Only positions [0, context_lens[s]) are read, and with a window only the last
    `window` of them: the other table entries may hold any value. K and V are read from
    the pool, those of the query's own token included: call `write_kv` first. A context
    is at most P · B, and at least as long as the sequence's queries or 0; where numbers
    in arrays break this, results are unspecified (NaN with `cpu`).

    With a latent pool (MLA) q is in the space of its rows, and so is the result, which
    has the pool's `value_dim` numbers: the up-projections are absorbed into the caller's
    projections (DeepSeek-V2, §2.1.2).

    Args:
      scale: factor of q·k.
      window: tokens that a query sees, its own included; None, or a traced 0, for all.
      chunk_size: the context is cut into chunks of so many tokens, and a query sees only
        its own chunk (Llama 4's local layers). Of `reference`, `xla` and `cpu`.
      soft_cap: c, logits become c · tanh(logits / c), before the mask.
      sinks: one logit per query head that joins the softmax without a value.
      return_lse: also return the log of the softmax's denominator (sinks included).
      implementation: one of `IMPLEMENTATIONS`.
      tiling: of the class in `TILINGS`; chosen from the shapes and `device_kind` if None.
      device_kind: the chip, as jax names it; None for tiles that fit every chip (`gpu`
        must be told).

    Returns:
      Attention in q's dtype, accumulated in float32, and lse [S, H] in float32 if asked
      for. A context of length 0 gives zeros and lse = -inf. `gpu` rounds q to bfloat16.

    Raises:
      ValueError: shapes or dtypes that disagree, a static window below 1, an
        implementation that is not offered or does not take these shapes or options.
    """
    run = choose(IMPLEMENTATIONS, implementation, "paged_attention", cache)
    check_inputs(q, cache, block_tables, context_lens, window, soft_cap, sinks)
    check_head_dim(q, cache)
    require_layer(layer, cache)
    if q.shape[0] != context_lens.shape[0]:
        raise ValueError(
            f"q of shape {q.shape} must have one row per sequence, context_lens has "
            f"{context_lens.shape[0]}; for several queries a sequence use "
            "ragged_paged_attention."
        )
    if isinstance(tiling, Tiling) and tiling.queries_per_tile != 1:
        raise ValueError(
            f"queries_per_tile={tiling.queries_per_tile} must be 1: in decode a sequence "
            "has one query; pass 1, or omit tiling."
        )
    if 0 in q.shape:
        run = _nothing
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
        **_chosen_options(implementation, tiling, device_kind, chunk_size, None),
    )
    return (out, lse) if return_lse else out


def ragged_paged_attention(
    q: Float[Array, "T H Dq"],
    cache: KVBlocks,
    layer: Int32[Array, ""] | int,
    block_tables: Int32[Array, "S P"],
    context_lens: Int32[Array, "S"],
    query_starts: Int32[Array, "S1"],
    num_seqs: Int32[Array, "1"],
    *,
    scale: float,
    window: Window = None,
    chunk_size: int | None = None,
    soft_cap: float | None = None,
    sinks: Float[Array, "H"] | None = None,
    return_lse: bool = False,
    expand: Expand | None = None,
    implementation: str,
    tiling: Any = None,
    device_kind: str | None = None,
) -> Float[Array, "T H Dv"] | tuple[Float[Array, "T H Dv"], Float[Array, "T H"]]:
    """Causal attention of ragged runs of queries over the blocks of their sequences.

    Sequence s < num_seqs owns queries [query_starts[s], query_starts[s + 1]): the last
    of its `context_lens[s]` tokens. Runs follow each other from query 0 without gaps.
    Prefill chunks and decodes mix freely.
    Everything else is as in `paged_attention`.

    Args:
      expand: for a latent pool, makes K and V of every query head from rows, a chunk of
        the context at a time; q and the result are then in the spaces of these. Cheaper
        than absorbed projections where a tile has many queries. Of `reference`, `xla`.

    Returns:
      As `paged_attention`, with a row per query. Rows from query_starts[num_seqs] on
      are unspecified, but finite (lse: or -inf).
    """
    run = choose(IMPLEMENTATIONS, implementation, "ragged_paged_attention", cache)
    check_inputs(q, cache, block_tables, context_lens, window, soft_cap, sinks)
    if expand is None:
        check_head_dim(q, cache)
    elif cache.layout.packing != "latent":
        raise ValueError(
            f"expand needs a latent pool, this one is {cache.layout.packing}; pass "
            "value_dim to kv_layout, or omit expand."
        )
    check_ragged(context_lens, query_starts, num_seqs)
    require_layer(layer, cache)
    if 0 in (*q.shape, block_tables.shape[0]):
        run = _nothing
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
        **_chosen_options(implementation, tiling, device_kind, chunk_size, expand),
    )
    return (out, lse) if return_lse else out


def _chosen_options(
    implementation: str,
    tiling: Any,
    device_kind: str | None,
    chunk_size: int | None,
    expand: Expand | None,
) -> dict[str, Any]:
    """Keywords for those implementations that take them; others refuse their values."""
    options: dict[str, Any] = {}
    if chunk_size is not None:
        _require_count(chunk_size=chunk_size)
        if implementation not in CHUNKED:
            raise ValueError(
                f"{implementation=} takes no chunk_size, got {chunk_size}; use one of "
                f"{CHUNKED}."
            )
        options["chunk_size"] = chunk_size
    if expand is not None:
        if implementation not in EXPANDING:
            raise ValueError(
                f"{implementation=} takes no expand; use one of {EXPANDING}, or absorb "
                "the up-projections into q and the result."
            )
        options["expand"] = expand
    if tiling is not None and type(tiling).__name__ != TILINGS.get(implementation):
        taken = TILINGS.get(implementation, "no tiling")
        raise ValueError(
            f"{implementation=} takes {taken}, got {tiling=}; omit it to have one chosen."
        )
    if implementation == "reference":
        return options
    return options | {"tiling": tiling, "device_kind": device_kind}


def _nothing(q, cache: KVBlocks, *_, expand: Expand | None = None, **__):
    """What no query of any sequence sees: shapes that compilers refuse end here."""
    size = value_dim(cache.layout, expand)
    return jnp.zeros((*q.shape[:2], size), q.dtype), jnp.full(q.shape[:2], -jnp.inf)


def _require_count(**values: Any) -> None:
    """A static number of tokens, that positions can be compared with."""
    for name, value in values.items():
        is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not is_integer or not 1 <= value < 2**31:
            raise ValueError(
                f"{name}={value} must be an integer of at least 1, below 2^31; pass None "
                "for no limit."
            )


def check_head_dim(q, cache) -> None:
    """Raises a ValueError unless q has the pool's head size."""
    if q.shape[2] != cache.layout.head_dim:
        raise ValueError(
            f"q of shape {q.shape} must be [queries, H, {cache.layout.head_dim}], the "
            "pool's head_dim."
        )


def check_inputs(q, cache, block_tables, context_lens, window, soft_cap, sinks) -> None:
    """Raises a ValueError that names what disagrees; looks at shapes and dtypes only."""
    layout = cache.layout
    if q.ndim != 3 or q.shape[1] % layout.kv_heads:
        raise ValueError(
            f"q of shape {q.shape} must be [queries, H, D], H a multiple of the pool's "
            f"kv_heads={layout.kv_heads}."
        )
    if q.dtype.name not in QUERY_DTYPES:
        raise ValueError(f"q has dtype {q.dtype}, must be one of {QUERY_DTYPES}; cast it.")
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
        _require_count(window=window)
    elif window is not None:
        require_int32(window=window)
        if window.shape != ():
            raise ValueError(f"window of shape {window.shape} must be a scalar.")
    if soft_cap is not None and not (
        isinstance(soft_cap, (int, float)) and 0 < soft_cap < math.inf
    ):
        raise ValueError(f"{soft_cap=} must be a positive number; pass None for no cap.")
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

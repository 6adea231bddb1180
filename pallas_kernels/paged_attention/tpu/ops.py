"""Both attention ops on TPU, by one Mosaic kernel (see `kernel`).

The pool enters the kernel whole and stays in HBM. The tables lie in SMEM: where they exceed
`TABLE_BYTES_IN_SMEM`, a scan runs the kernel on so many sequences at a time.

Products are of bfloat16 numbers if q is bfloat16 and the pool is no float32 (8-bit
numbers are exact in it); else of float32, in the matrix unit's highest precision.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Float32, Int32

from pallas_kernels.kv_blocks import KVBlocks
from pallas_kernels.layout import KVLayout
from pallas_kernels.paged_attention.merging import join_sinks
from pallas_kernels.paged_attention.tiling import Tiling
from pallas_kernels.paged_attention.tpu.kernel import call_kernel
from pallas_kernels.paged_attention.tpu.plan import Plan
from pallas_kernels.paged_attention.tpu.tiling import tpu_chip, tpu_tiling
from pallas_kernels.paged_attention.xla import ragged_tiles
from pallas_kernels.paged_attention.xla_tile import Tile

# Of 1 MiB; the rest is for tiles, and what the compiler keeps there.
TABLE_BYTES_IN_SMEM = 512 * 1024


def paged_attention_tpu(
    q: Float[Array, "S H D"],
    cache: KVBlocks,
    layer: Int32[Array, ""] | int,
    block_tables: Int32[Array, "S P"],
    context_lens: Int32[Array, "S"],
    *,
    tiling: Tiling | None = None,
    **options,
) -> tuple[Float[Array, "S H Dv"], Float32[Array, "S H"]]:
    """See `pallas_kernels.paged_attention.paged_attention`; `options` are `_attend`'s."""

    def tiles_of(first: Int32[Array, ""], num_rows: int, _: int):
        lengths = _rows(context_lens, first, num_rows)
        sequence = jnp.arange(num_rows, dtype=jnp.int32)
        tiles = Tile(
            sequence=sequence,
            first_query=first + sequence,
            num_queries=jnp.minimum(lengths, 1),
            first_position=jnp.maximum(lengths - 1, 0),
        )
        return tiles, jnp.int32(num_rows)

    is_query = context_lens > 0
    return _attend(
        q, cache, layer, block_tables, tiles_of, is_query, tiling, True, **options
    )


def ragged_paged_attention_tpu(
    q: Float[Array, "T H D"],
    cache: KVBlocks,
    layer: Int32[Array, ""] | int,
    block_tables: Int32[Array, "S P"],
    context_lens: Int32[Array, "S"],
    query_starts: Int32[Array, "S1"],
    num_seqs: Int32[Array, "1"],
    *,
    tiling: Tiling | None = None,
    **options,
) -> tuple[Float[Array, "T H Dv"], Float32[Array, "T H"]]:
    """See `pallas_kernels.paged_attention.ragged_paged_attention`."""

    def tiles_of(first: Int32[Array, ""], num_rows: int, queries_per_tile: int):
        return ragged_tiles(
            _rows(query_starts, first, num_rows + 1, mode="edge"),
            _rows(context_lens, first, num_rows),
            jnp.clip(num_seqs - first, 0, num_rows),
            q.shape[0],
            queries_per_tile,
        )

    is_query = jnp.arange(q.shape[0], dtype=jnp.int32) < query_starts[num_seqs[0]]
    return _attend(
        q, cache, layer, block_tables, tiles_of, is_query, tiling, False, **options
    )


def _rows(
    array: Int32[Array, "rows"], first: Int32[Array, ""], count: int, **padding: Any
) -> Int32[Array, "count"]:
    return lax.dynamic_slice_in_dim(jnp.pad(array, (0, count), **padding), first, count)


def _attend(
    q: Float[Array, "T H D"],
    cache: KVBlocks,
    layer: Int32[Array, ""] | int,
    block_tables: Int32[Array, "S P"],
    tiles_of: Callable[..., tuple[Tile, Int32[Array, ""]]],
    is_query: Array,
    tiling: Tiling | None,
    is_decode: bool,
    *,
    scale: float,
    window: Int32[Array, ""] | int | None,
    soft_cap: float | None,
    sinks: Float[Array, "H"] | None,
    device_kind: str | None = None,
    interpret: Any = False,
    table_bytes: int = TABLE_BYTES_IN_SMEM,
) -> tuple[Float[Array, "T H Dv"], Float32[Array, "T H"]]:
    """Cuts the batch where its tables exceed `table_bytes`, and runs the kernel."""
    layout = cache.layout
    num_seqs, blocks_per_sequence = block_tables.shape
    rows = min(table_bytes // (4 * blocks_per_sequence), num_seqs)
    if rows < 1:
        raise ValueError(
            f"a table of {blocks_per_sequence} blocks needs {4 * blocks_per_sequence} "
            f"bytes of SMEM, which has {table_bytes} for tables; use larger blocks than "
            f"block_size={cache.block_size}."
        )
    chip = tpu_chip(device_kind)
    plan = _plan(q, cache, blocks_per_sequence, tiling, is_decode, device_kind)
    plan = dataclasses.replace(
        plan, scale=scale, soft_cap=soft_cap, has_window=window is not None
    )
    run = partial(
        call_kernel,
        plan,
        q=_pad_lanes(q, layout.padded_dim),
        cache=cache,
        vmem_limit_bytes=chip.vmem_bytes,
        interpret=interpret,
    )

    def run_rows(first, tables, result):
        tiles, num_tiles = tiles_of(first, rows, plan.queries_per_tile)
        settings = (layer, 0 if window is None else window, num_tiles)
        settings = [jnp.asarray(x, jnp.int32) for x in settings]
        return run(
            jnp.stack(settings), jnp.concatenate(tiles), tables.ravel(), result=result
        )

    if rows == num_seqs:
        result = run_rows(jnp.int32(0), block_tables, None)
    else:
        starts = jnp.arange(0, num_seqs, rows, dtype=jnp.int32)
        tables = jnp.pad(block_tables, ((0, -num_seqs % rows), (0, 0)))
        parts = (starts, tables.reshape(len(starts), rows * blocks_per_sequence))
        result, _ = lax.scan(
            lambda result, part: (run_rows(*part, result), None),
            jnp.zeros((*q.shape[:2], plan.result_lanes), jnp.float32),
            parts,
        )
    out, lse = _finish(layout, result, is_query, sinks)
    return out.astype(q.dtype), lse


def _plan(
    q: Float[Array, "T H D"],
    cache: KVBlocks,
    blocks_per_sequence: int,
    tiling: Tiling | None,
    is_decode: bool,
    device_kind: str | None,
) -> Plan:
    sizes = dict(
        layout=cache.layout,
        query_dtype=q.dtype,
        block_size=cache.block_size,
        blocks_per_sequence=blocks_per_sequence,
        num_heads=q.shape[1],
    )
    num_queries = 1 if is_decode else q.shape[0]
    tiling = tiling or tpu_tiling(device_kind, num_queries=num_queries, **sizes)
    return Plan(
        blocks_per_chunk=tiling.blocks_per_chunk,
        queries_per_tile=tiling.queries_per_tile,
        num_cores=tpu_chip(device_kind).num_cores,
        **sizes,
    )


def _pad_lanes(q: Float[Array, "T H D"], lanes: int) -> Float[Array, "T H Dp"]:
    """Where a stored row has more numbers than K (its V, or padding) q is 0."""
    return jnp.pad(q, ((0, 0), (0, 0), (0, lanes - q.shape[2])))


def _finish(
    layout: KVLayout,
    result: Float32[Array, "T H lanes"],
    is_query: Array,
    sinks: Float[Array, "H"] | None,
) -> tuple[Float32[Array, "T H Dv"], Float32[Array, "T H"]]:
    """Cuts V's numbers and lse out of the kernel's result, and lets sinks join."""
    first = layout.head_dim if layout.packing == "packed" else 0
    out = result[..., first : first + layout.value_dim]
    lse = result[..., -1]
    lse = jnp.where(is_query[:, None], lse, -jnp.inf)  # other rows were never written
    out = jnp.where(jnp.isneginf(lse)[..., None], 0, out)
    return join_sinks(out, lse, sinks)

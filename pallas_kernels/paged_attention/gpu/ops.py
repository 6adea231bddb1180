"""Both attention ops on Hopper GPUs, by Pallas Mosaic GPU.

For each kv head, rows are put in the order (sequence, query, head of the group) and cut
into tiles of one sequence (`rows`). `kernel` attends them; splits of a tile's
keys, and sinks, are merged here by their lse, as in Flash-Decoding (Dao et al. 2023).

Products are of bfloat16 numbers: a float32 q is rounded to bfloat16, and so are the
weights before they meet V.
"""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Float32, Int32

from pallas_kernels.kv_blocks import KVBlocks
from pallas_kernels.paged_attention.api import Window
from pallas_kernels.paged_attention.gpu.kernel import attend_tiles
from pallas_kernels.paged_attention.gpu.rows import RowTiles, cut_decode, cut_ragged
from pallas_kernels.paged_attention.gpu.scratch import Shape, swizzle_bytes
from pallas_kernels.paged_attention.gpu.tiling import (
    GPU_CHUNK_ROWS,
    GPU_MAX_COLUMNS,
    GPU_TMA_ROWS,
    GpuTiling,
    gpu_tiling,
)
from pallas_kernels.paged_attention.merging import join_sinks, merge_parts

HOPPER = ("H100", "H200", "H800", "H20")  # parts of the names of chips that have wgmma
NO_WINDOW = 2**30  # tokens, more than any context has
MAX_SCALE_COLUMNS = 256  # of a box that TMA copies
SCALE_ALIGNMENT = 32  # numbers, where a TMA copy into shared memory may begin


def _require(is_met: bool, need: str) -> None:
    if not is_met:
        raise ValueError(
            f"implementation='gpu' needs {need}; use implementation='xla' or 'gpu_triton'."
        )


def _check_chip(device_kind: str | None, *, interpret: bool) -> None:
    """Before anything is compiled for a chip that the kernel is not for."""
    if device_kind is None:
        if interpret:
            return
        raise ValueError(
            f"implementation='gpu' needs device_kind, got {device_kind}; pass "
            "jax.devices()[0].device_kind: compiled for a chip without wgmma, the kernel "
            "aborts the process."
        )
    is_hopper = any(name in device_kind for name in HOPPER)
    _require(is_hopper, f"wgmma, which {HOPPER} have, got {device_kind=}")


def _check(cache: KVBlocks, block_tables, groups: int) -> None:
    """Raises for shapes and dtypes that this implementation does not take."""
    layout, block_size = cache.layout, cache.block_size
    head_dim, value_dim, is_latent = (
        layout.head_dim,
        layout.value_dim,
        layout.packing == "latent",
    )
    _require(
        layout.dtype != jnp.float32,
        f"a pool of bfloat16, int8 or float8_e4m3fn, got {layout.dtype}, which the tensor "
        "cores would round to 10 bits",
    )
    _require(
        block_size % GPU_TMA_ROWS == 0,
        f"a block size that is a multiple of the {GPU_TMA_ROWS} rows of a TMA tile, got "
        f"{block_size=}",
    )
    multiple = 32 if is_latent and layout.is_quantized else 16
    _require(head_dim % multiple == 0, f"a multiple of {multiple}, got {head_dim=}")
    most = GPU_MAX_COLUMNS * (2 if is_latent else 1)
    _require(
        value_dim <= most, f"at most {most} columns of V in registers, got {value_dim}"
    )
    if is_latent:
        multiple = swizzle_bytes(head_dim, jnp.bfloat16) // 2
        multiple *= -(-value_dim // GPU_MAX_COLUMNS)
        _require(value_dim % multiple == 0, f"a multiple of {multiple}, got {value_dim=}")
    if layout.is_quantized:
        num_scales = layout.num_rows
        _require(
            GPU_TMA_ROWS * num_scales <= MAX_SCALE_COLUMNS,
            f"at most {MAX_SCALE_COLUMNS // GPU_TMA_ROWS} scales per token, got "
            f"{num_scales}",
        )
        _require(
            block_size > GPU_CHUNK_ROWS or block_size * num_scales % SCALE_ALIGNMENT == 0,
            f"a multiple of {SCALE_ALIGNMENT} scales per block, got {block_size} tokens "
            f"of {num_scales}",
        )
    positions = math.prod(cache.kv.shape[:3])
    rows = block_tables.shape[1] * block_size * groups
    _require(
        max(positions, rows) < 2**31,
        f"less than 2^31 positions, got {positions} in the pool, and rows, got {rows} in "
        "a sequence",
    )


def _choose_tiling(
    num_queries: int, cache: KVBlocks, block_tables, groups: int, tiling, device_kind
) -> GpuTiling:
    layout, block_size = cache.layout, cache.block_size
    tiling = tiling or gpu_tiling(
        num_seqs=block_tables.shape[0],
        num_queries=num_queries,
        groups=groups,
        kv_heads=layout.kv_heads,
        head_dim=layout.head_dim,
        value_dim=layout.value_dim,
        columns=layout.rows // layout.kv_heads * layout.padded_dim,
        num_scales=layout.num_rows if layout.is_quantized else 0,
        block_size=block_size,
        max_context=block_tables.shape[1] * block_size,
        device_kind=device_kind,
    )
    if tiling.chunk_tokens % block_size and block_size % tiling.chunk_tokens:
        raise ValueError(
            f"chunk_tokens={tiling.chunk_tokens} must be whole blocks of {block_size=}, or "
            "divide one; omit tiling."
        )
    return tiling


def _tile_map(
    tiles: RowTiles, cache: KVBlocks, layer: Int32[Array, ""] | int, window: Window, groups
) -> Int32[Array, "tiles 8"]:
    """See `scratch.Field`."""
    groups = jnp.int32(groups)

    def seen(row):  # keys that a row sees without a window
        return lax.div(row + groups, groups)

    width = jnp.int32(NO_WINDOW if window is None else window)
    width = jnp.where(width == 0, NO_WINDOW, width)
    last_row = tiles.first_row + tiles.num_rows - 1
    end = jnp.where(tiles.num_rows > 0, seen(last_row), 0)
    start = jnp.clip(seen(tiles.first_row) - width, 0, end)
    first_block = jnp.int32(layer) * cache.num_blocks
    columns = (*tiles, start, end, width, first_block)
    return jnp.stack(jnp.broadcast_arrays(*columns), axis=1)


def _attend(
    q: Float[Array, "K rows D"],
    tiles: RowTiles,
    cache: KVBlocks,
    layer: Int32[Array, ""] | int,
    block_tables: Int32[Array, "S P"],
    tiling: GpuTiling,
    *,
    groups: int,
    out_dtype: np.dtype,
    scale: float,
    window: Window,
    soft_cap: float | None,
    interpret: bool,
) -> tuple[Float[Array, "splits K tile_rows Dv"], Float32[Array, "splits K tile_rows"]]:
    """Attention and lse of every row of every tile, per split."""
    layout, scales = cache.layout, cache.scales
    if tiling.splits > 1 and tiling.value_parts == 1:
        out_dtype = np.dtype(np.float32)  # of parts yet to be merged
    if tiling.value_parts > 1:
        # queries and ring of a latent leave no place for a result of float32
        out_dtype = np.dtype(jnp.bfloat16)
    shape = Shape(
        kv_heads=layout.kv_heads,
        groups=groups,
        head_dim=layout.head_dim,
        value_dim=layout.value_dim,
        is_latent=layout.packing == "latent",
        is_quantized=layout.is_quantized,
        block_size=cache.block_size,
        num_tiles=tiles.sequence.shape[0],
        scale=scale,
        soft_cap=soft_cap,
        out_dtype=out_dtype,
        tiling=tiling,
    )
    return attend_tiles(
        shape,
        _tile_map(tiles, cache, layer, window, groups),
        block_tables,
        q,
        # views: the axes in front fold into one
        cache.kv.reshape(-1, layout.rows * layout.padded_dim),
        None if scales is None else scales.reshape(-1, GPU_TMA_ROWS * layout.num_rows),
        interpret=interpret,
    )


def _rows_of(q: Float[Array, "T H D"], kv_heads: int) -> Float[Array, "K rows D"]:
    """A row per query and head of the group, for each kv head, as the products round."""
    num_tokens, num_heads, dim = q.shape
    q = q.astype(jnp.bfloat16).reshape(num_tokens, kv_heads, num_heads // kv_heads, dim)
    return q.swapaxes(0, 1).reshape(kv_heads, -1, dim)


def _heads_of(rows: Float[Array, "K rows *rest"], groups: int) -> Float[Array, "T H *rest"]:
    """The inverse of `_rows_of`."""
    kv_heads, _, *rest = rows.shape
    rows = rows.reshape(kv_heads, -1, groups, *rest).swapaxes(0, 1)
    return rows.reshape(rows.shape[0], kv_heads * groups, *rest)


def _joined(
    out: Float[Array, "splits K rows Dv"],
    lse: Float32[Array, "splits K rows"],
    sinks: Float[Array, "H"] | None,
    groups: int,
    dtype: np.dtype,
) -> tuple[Float[Array, "T H Dv"], Float32[Array, "T H"]]:
    """Merges splits, rows back to heads, and lets sinks join."""
    out, lse = (_heads_of(x, groups) for x in merge_parts(out, lse))
    out, lse = join_sinks(out, lse, sinks)
    return out.astype(dtype), lse


def paged_attention_gpu(
    q: Float[Array, "S H D"],
    cache: KVBlocks,
    layer: Int32[Array, ""] | int,
    block_tables: Int32[Array, "S P"],
    context_lens: Int32[Array, "S"],
    *,
    sinks: Float[Array, "H"] | None,
    tiling: GpuTiling | None = None,
    device_kind: str | None = None,
    interpret: bool = False,
    **options: Any,
) -> tuple[Float[Array, "S H Dv"], Float[Array, "S H"]]:
    """See `pallas_kernels.paged_attention.paged_attention`."""
    (num_seqs, num_heads, dim), kv_heads = q.shape, cache.layout.kv_heads
    groups = num_heads // kv_heads
    _check_chip(device_kind, interpret=interpret)
    _check(cache, block_tables, groups)
    tiling = _choose_tiling(1, cache, block_tables, groups, tiling, device_kind)
    tiles, padded = cut_decode(context_lens, groups, tiling.tile_rows)
    rows = _rows_of(q, kv_heads).reshape(kv_heads, num_seqs, groups, dim)
    rows = jnp.pad(rows, ((0, 0), (0, 0), (0, padded - groups), (0, 0)))
    rows = rows.reshape(kv_heads, num_seqs * padded, dim)
    out, lse = _attend(
        # the last tile reads a whole one
        jnp.pad(rows, ((0, 0), (0, tiling.tile_rows), (0, 0))),
        tiles,
        cache,
        layer,
        block_tables,
        tiling,
        groups=groups,
        out_dtype=q.dtype,
        interpret=interpret,
        **options,
    )

    def of_heads(x):  # the tiles of a sequence have more rows than heads
        x = x.reshape(*x.shape[:2], num_seqs, -1, *x.shape[3:])[:, :, :, :groups]
        return x.reshape(*x.shape[:2], num_seqs * groups, *x.shape[4:])

    return _joined(of_heads(out), of_heads(lse), sinks, groups, q.dtype)


def ragged_paged_attention_gpu(
    q: Float[Array, "T H D"],
    cache: KVBlocks,
    layer: Int32[Array, ""] | int,
    block_tables: Int32[Array, "S P"],
    context_lens: Int32[Array, "S"],
    query_starts: Int32[Array, "S1"],
    num_seqs: Int32[Array, "1"],
    *,
    sinks: Float[Array, "H"] | None,
    tiling: GpuTiling | None = None,
    device_kind: str | None = None,
    interpret: bool = False,
    **options: Any,
) -> tuple[Float[Array, "T H Dv"], Float[Array, "T H"]]:
    """See `pallas_kernels.paged_attention.ragged_paged_attention`."""
    num_tokens, kv_heads = q.shape[0], cache.layout.kv_heads
    groups = q.shape[1] // kv_heads
    _check_chip(device_kind, interpret=interpret)
    _check(cache, block_tables, groups)
    tiling = _choose_tiling(num_tokens, cache, block_tables, groups, tiling, device_kind)
    cut = cut_ragged(
        query_starts, context_lens, num_seqs, num_tokens, groups, tiling.tile_rows
    )
    out, lse = _attend(
        _rows_of(q, kv_heads)[:, cut.row_of_query],
        cut.tiles,
        cache,
        layer,
        block_tables,
        tiling,
        groups=groups,
        out_dtype=q.dtype,
        interpret=interpret,
        **options,
    )
    is_row = cut.row_of_result < lse.shape[2]
    lse = lse.at[:, :, cut.row_of_result].get(mode="clip")
    lse = jnp.where(is_row, lse, -jnp.inf)
    out = out.at[:, :, cut.row_of_result].get(mode="clip")
    return _joined(out, lse, sinks, groups, q.dtype)

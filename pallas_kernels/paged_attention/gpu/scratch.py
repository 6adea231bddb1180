"""What the Hopper kernel knows while it is traced, and what it keeps in shared memory."""

import dataclasses
from enum import IntEnum
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.paged_attention.gpu.tiling import (
    GPU_CHUNK_ROWS,
    GPU_ROWS,
    GPU_TMA_ROWS,
    GpuTiling,
    gpu_slab_columns,
)


class Field(IntEnum):
    """Columns of the tile map, int32 [tiles, 8]."""

    SEQUENCE = 0
    QUERY_ROW = 1  # the first, in the array of queries; a multiple of GPU_TMA_ROWS
    FIRST_ROW = 2  # G times the position of query 0, plus the rows before the tile
    NUM_ROWS = 3
    START = 4  # the tile reads positions [START, END)
    END = 5
    WINDOW = 6
    FIRST_BLOCK = 7  # of the layer, in the array of all layers' blocks


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What is static in a call."""

    kv_heads: int
    groups: int  # G
    head_dim: int
    value_dim: int
    is_latent: bool
    is_quantized: bool
    block_size: int
    num_tiles: int
    scale: float
    soft_cap: float | None
    out_dtype: np.dtype
    tiling: GpuTiling

    @property
    def columns(self) -> int:
        """Of a token's K and V of one kv head, which lie side by side in the pool."""
        return self.head_dim if self.is_latent else 2 * self.head_dim

    @property
    def first_value(self) -> int:
        return 0 if self.is_latent else self.head_dim

    @property
    def num_scales(self) -> int:
        """R, of a token."""
        return 1 if self.is_latent else 2 * self.kv_heads

    @property
    def copy_tokens(self) -> int:
        """Of one TMA copy: a block, or where that exceeds a chunk, a part of one."""
        return min(self.block_size, self.tiling.chunk_tokens)

    @property
    def part_columns(self) -> int:
        """Of V, that one consumer accumulates."""
        return self.value_dim // self.tiling.value_parts

    @property
    def slab_columns(self) -> int:
        """Of a result, that are staged in shared memory at once."""
        return gpu_slab_columns(self.part_columns)


class Scratch(NamedTuple):
    """Shared memory and barriers of one program."""

    q: Any  # [1, tile_rows, D]
    kv: Any  # [stages, GPU_CHUNK_ROWS, columns], as the pool stores them
    wide: Any  # [1, GPU_CHUNK_ROWS, columns], a chunk in q's dtype; None: it is stored so
    scales: Any  # [stages, GPU_CHUNK_ROWS / 8, 8 · R]; None if there are none
    out: Any  # [consumers, GPU_ROWS, slab_columns]; None: results take the place of q
    lse: Any  # [consumers, GPU_ROWS]
    q_loaded: Any
    full: Any  # one per stage: its chunk has arrived
    empty: Any  # one per stage: all consumers are done with it
    together: Any  # all consumers have come here


def swizzle_bytes(columns: int, dtype: Any, most: int = 128) -> int:
    """The widest pattern in which rows of a matrix may lie for TMA and tensor cores."""
    row_bytes = columns * jnp.dtype(dtype).itemsize
    return next(s for s in (128, 64, 32) if s <= most and row_bytes % s == 0)


def _matrix(shape: tuple[int, ...], dtype: Any, swizzle: int) -> Any:
    tile = (GPU_TMA_ROWS, swizzle // jnp.dtype(dtype).itemsize)
    layout = plgpu.TilingTransform(tile), plgpu.SwizzleTransform(swizzle)
    return plgpu.SMEM(shape, dtype, transforms=layout)


def make_scratch(s: Shape, q_dtype: Any, kv_dtype: Any) -> Scratch:
    """Declares what a program with these shapes needs."""
    stages, consumers = s.tiling.stages, s.tiling.consumers
    swizzle = swizzle_bytes(s.head_dim, q_dtype)  # K and V each begin with a whole tile
    ring = (stages, GPU_CHUNK_ROWS, s.columns)
    slab = (consumers, GPU_ROWS, s.slab_columns)
    copies = -(-s.tiling.chunk_tokens // s.copy_tokens)
    wide = scales = out = None
    kv = _matrix(ring, kv_dtype, swizzle)
    if s.is_quantized:
        # a slab that is widened at once must be whole tiles of both
        kv = _matrix(ring, kv_dtype, swizzle_bytes(s.columns, kv_dtype, most=64))
        wide = _matrix((1, *ring[1:]), q_dtype, swizzle)
        token_rows = GPU_CHUNK_ROWS // GPU_TMA_ROWS
        scales = plgpu.SMEM((stages, token_rows, GPU_TMA_ROWS * s.num_scales), jnp.float32)
    if s.out_dtype != q_dtype:
        out = _matrix(slab, s.out_dtype, swizzle_bytes(s.slab_columns, s.out_dtype))
    return Scratch(
        q=_matrix((1, s.tiling.tile_rows, s.head_dim), q_dtype, swizzle),
        kv=kv,
        wide=wide,
        scales=scales,
        out=out,
        lse=plgpu.SMEM((consumers, GPU_ROWS), jnp.float32),
        q_loaded=plgpu.Barrier(),
        full=plgpu.Barrier(num_arrivals=copies * (1 + s.is_quantized), num_barriers=stages),
        empty=plgpu.Barrier(num_arrivals=consumers, num_barriers=stages),
        together=plgpu.Barrier(num_arrivals=consumers),
    )

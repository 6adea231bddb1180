"""What the TPU kernel knows when it is traced: sizes, buffers, the memory they need."""

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_kernels.layout import TPU_LANES, KVLayout

NUM_BUFFERS = 2  # one is computed with while the other is filled

Buffers = dict[str, tuple[tuple[int, ...], Any]]  # shape and dtype by name


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes of one call."""

    layout: KVLayout
    block_size: int
    blocks_per_sequence: int  # entries of a row of the tables
    blocks_per_chunk: int
    queries_per_tile: int
    num_heads: int
    num_cores: int
    query_dtype: np.dtype
    scale: float = 1.0
    soft_cap: float | None = None
    has_window: bool = False

    @property
    def groups(self) -> int:
        """G, query heads per kv head."""
        return self.num_heads // self.layout.kv_heads

    @property
    def chunk_tokens(self) -> int:
        return self.blocks_per_chunk * self.block_size

    @property
    def chunk_rows(self) -> int:
        """As the pool stores them."""
        return self.chunk_tokens * self.layout.rows

    @property
    def planes(self) -> int:
        """Pieces of 128 lanes of a stored row."""
        return self.layout.padded_dim // TPU_LANES

    @property
    def value_lanes(self) -> int:
        """Of a weighted sum of V; the callers cut V's own out."""
        if self.layout.packing == "latent":
            return -(-self.layout.value_dim // TPU_LANES) * TPU_LANES
        return self.layout.padded_dim

    @property
    def result_lanes(self) -> int:
        """Of a row of the result: the sum, then lse in each of 128 lanes."""
        return self.value_lanes + TPU_LANES

    @property
    def compute_dtype(self) -> np.dtype:
        """Of what the matrix unit multiplies; 8-bit numbers are exact in bfloat16."""
        is_float32 = np.dtype(jnp.float32) in (self.query_dtype, self.layout.dtype)
        return np.dtype(jnp.float32 if is_float32 else jnp.bfloat16)

    @property
    def precision(self) -> lax.Precision:
        is_float32 = self.compute_dtype == jnp.float32
        return lax.Precision.HIGHEST if is_float32 else lax.Precision.DEFAULT

    def by_row(self, num_queries: int) -> bool:
        """Whether a tile of so many queries meets the chunk as it is stored.

        Then all heads meet all rows, and the mask drops the rows of other heads. For one
        query that costs less than to sort the rows by head; for a latent there is nothing
        to sort. Scales must lie as the rows do.
        """
        layout = self.layout
        if layout.is_quantized and (
            layout.num_rows != layout.rows
            or self.block_size * layout.rows % TPU_LANES
            or layout.packing == "packed"
        ):
            return False
        return num_queries == 1 or layout.packing == "latent"

    def state_shape(self, num_queries: int) -> tuple[int, int]:
        """Softmaxes of a tile: those of one kv head apart unless `by_row`."""
        if self.by_row(num_queries):
            return 1, num_queries * self.num_heads
        return self.layout.kv_heads, num_queries * self.groups

    def buffers(self) -> Buffers:
        """All that lie in VMEM."""
        layout, f32 = self.layout, jnp.float32
        lead = (NUM_BUFFERS, self.blocks_per_chunk)
        queries = (self.queries_per_tile, self.num_heads)
        buffers: Buffers = dict(
            blocks=((*lead, *layout.block_shape(self.block_size)), layout.storage_dtype),
            queries=((NUM_BUFFERS, *queries, layout.padded_dim), self.query_dtype),
            result=((*queries, self.result_lanes), f32),
        )
        if layout.is_quantized:
            buffers["scales"] = ((*lead, *layout.scale_shape(self.block_size)), f32)
        sizes = {1, self.queries_per_tile}
        if any(self.by_row(size) for size in sizes) and layout.rows > 1:
            buffers["other_heads"] = ((self.num_heads, self.chunk_rows), f32)
        if not all(self.by_row(size) for size in sizes):
            buffers["rows"] = ((self.planes, self.chunk_rows, TPU_LANES), f32)
            if layout.is_quantized:
                scale_rows = layout.scale_shape(self.block_size)[0]
                shape = (self.blocks_per_chunk, scale_rows * TPU_LANES, TPU_LANES)
                buffers["columns"] = (shape, f32)
        for size in sizes:
            shape = self.state_shape(size)
            buffers |= {
                f"q_{size}": ((*shape, layout.padded_dim), self.compute_dtype),
                f"largest_{size}": ((*shape, TPU_LANES), f32),
                f"total_{size}": ((*shape, TPU_LANES), f32),
                f"values_{size}": ((*shape, self.value_lanes), f32),
            }
        return buffers

    @property
    def vmem_bytes(self) -> int:
        """Of the buffers, and an estimate of what the compiler keeps beside them."""
        sizes = [_tiled_bytes(*buffer) for buffer in self.buffers().values()]
        # the chunk as float32, whose products need three bfloat16 parts of it besides
        copies = 4 if self.compute_dtype == jnp.float32 else 1
        chunk_bytes = 4 * self.chunk_rows * self.layout.padded_dim
        return sum(sizes) + 4 * self.logits_bytes + copies * chunk_bytes

    @property
    def logits_bytes(self) -> int:
        """Of the largest array of logits."""
        sizes = [1]
        for num_queries in {1, self.queries_per_tile}:
            is_by_row = self.by_row(num_queries)
            keys = self.chunk_rows if is_by_row else self.chunk_tokens
            rows = self.state_shape(num_queries)[1]
            sizes.append(_tiled_bytes((rows, keys), jnp.float32))
        return max(sizes)


def _tiled_bytes(shape: tuple[int, ...], dtype: Any) -> int:
    """With the last two axes padded to a register's; short ones take half or a quarter."""
    *lead, rows, lanes = shape
    itemsize = np.dtype(dtype).itemsize
    least = 4 // itemsize
    tile = min(8, max(least, 1 << (rows - 1).bit_length()))
    padded = -(-rows // tile) * tile * -(-lanes // TPU_LANES) * TPU_LANES
    return math.prod(lead) * padded * itemsize

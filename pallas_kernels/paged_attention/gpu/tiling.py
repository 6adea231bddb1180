"""Tile sizes of the Hopper kernel, checked against its shared memory."""

import itertools
from dataclasses import dataclass

from pallas_kernels.paged_attention.splits import num_splits

GPU_ROWS = 64  # of a warpgroup's tensor-core instruction on Hopper
GPU_TMA_ROWS = 8  # of a tile that TMA copies
GPU_CHUNK_ROWS = 64  # places for tokens in a chunk of K and V
GPU_SHARED_BYTES = 227 * 1024  # of one program on H100 and H200
GPU_REDUCTION_BYTES = 1024  # of it, that the compiler may use across warps
GPU_RESERVED_BYTES = GPU_REDUCTION_BYTES + 1024  # that, barriers, and alignment
GPU_MAX_COLUMNS = 256  # of V that one consumer accumulates in registers
GPU_MAX_STAGES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTiling:
    """Of the Hopper kernel: consumers (warpgroups) take 64 rows each of a tile."""

    chunk_tokens: int  # of K and V, in one place of the ring
    stages: int  # places in the ring
    row_groups: int  # of 64 rows, in a tile
    value_parts: int  # consumers that share rows and split the columns of V
    splits: int  # programs that share the keys of a tile

    def __post_init__(self) -> None:
        if self.chunk_tokens % GPU_TMA_ROWS or not 0 < self.chunk_tokens <= GPU_CHUNK_ROWS:
            raise ValueError(
                f"chunk_tokens={self.chunk_tokens} must be a multiple of {GPU_TMA_ROWS}, "
                f"at most {GPU_CHUNK_ROWS}."
            )
        if self.stages < 2 or self.splits < 1 or self.consumers not in (1, 2):
            raise ValueError(
                f"stages={self.stages} must be at least 2, splits={self.splits} at least "
                f"1, and row_groups={self.row_groups} times value_parts="
                f"{self.value_parts} 1 or 2: more consumers have too few registers."
            )

    @property
    def tile_rows(self) -> int:
        return self.row_groups * GPU_ROWS

    @property
    def consumers(self) -> int:
        return self.row_groups * self.value_parts

    def shared_bytes(
        self,
        *,
        head_dim: int,
        value_dim: int,
        columns: int,
        num_scales: int,
        out_itemsize: int,
    ) -> int:
        """Of a program. See `gpu_tiling` for the arguments."""
        wide_bytes = GPU_CHUNK_ROWS * columns * 2
        queries = self.tile_rows * head_dim * 2
        ring = self.stages * wide_bytes
        if num_scales:
            scale_bytes = GPU_CHUNK_ROWS * num_scales * 4
            ring = self.stages * (wide_bytes // 2 + scale_bytes) + wide_bytes
        # results of 16 bits take the place of the queries
        slab = gpu_slab_columns(value_dim // self.value_parts)
        result = self.consumers * GPU_ROWS * slab * out_itemsize if out_itemsize > 2 else 0
        lse = self.consumers * GPU_ROWS * 4
        return queries + ring + result + lse + GPU_RESERVED_BYTES


def gpu_slab_columns(columns: int) -> int:
    """Of a result, that a consumer stages in shared memory at once."""
    return 64 if columns % 64 == 0 else columns


def gpu_tiling(
    *,
    num_seqs: int,
    num_queries: int,
    groups: int,
    kv_heads: int,
    head_dim: int,
    value_dim: int,
    columns: int,
    num_scales: int,
    block_size: int,
    max_context: int,
    device_kind: str | None,
) -> GpuTiling:
    """Tiles that fit H100 and compile without spills; not timed.

    Args:
      num_queries: of the whole batch; 1 for decode, where each sequence has one.
      columns: numbers of K and V that a token has, per kv head.
      num_scales: R of a token in a quantised pool, which has 8 bits; 0 for 16 bits.
      max_context: tokens that a row of the table has room for.

    Raises:
      ValueError: shapes that exceed shared memory.
    """
    if block_size <= GPU_CHUNK_ROWS:
        chunk_tokens = GPU_CHUNK_ROWS // block_size * block_size
    else:  # a part of a block, of whole TMA tiles
        sizes = range(GPU_TMA_ROWS, GPU_CHUNK_ROWS + 1, GPU_TMA_ROWS)
        chunk_tokens = max(size for size in sizes if block_size % size == 0)
    value_parts = -(-value_dim // GPU_MAX_COLUMNS)
    is_long = num_queries * groups > GPU_ROWS and value_parts == 1
    least_bytes = GPU_SHARED_BYTES
    for row_groups, stages in itertools.product(
        (2, 1) if is_long else (1,), range(GPU_MAX_STAGES, 1, -1)
    ):
        rows = row_groups * GPU_ROWS
        tiles = num_seqs * -(-groups // rows)
        if num_queries > 1:
            tiles = num_queries * groups // rows + num_seqs
        tiling = GpuTiling(
            chunk_tokens=chunk_tokens,
            stages=stages,
            row_groups=row_groups,
            value_parts=value_parts,
            splits=num_splits(tiles * kv_heads, max_context, device_kind),
        )
        least_bytes = tiling.shared_bytes(
            head_dim=head_dim,
            value_dim=value_dim,
            columns=columns,
            num_scales=num_scales,
            out_itemsize=2 if value_parts > 1 else 4,
        )
        if least_bytes <= GPU_SHARED_BYTES:
            return tiling
    raise ValueError(
        f"{head_dim=}, {value_dim=}, {num_scales=} need {least_bytes} bytes of shared "
        f"memory, an H100 has {GPU_SHARED_BYTES}; use implementation='xla' or 'gpu_triton'."
    )

"""Tile sizes of the Triton kernel."""

from dataclasses import dataclass

from pallas_kernels.paged_attention.splits import num_splits
from pallas_kernels.triton_calls import MIN_DOT, next_power_of_two


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonTiling:
    """Of the Triton kernel, whose tiles are rows: the heads of a group, query by query."""

    rows_per_tile: int
    tokens_per_chunk: int  # of K and V, read at once
    num_splits: int  # programs that share the keys of a tile
    num_warps: int
    num_stages: int  # chunks under way at once

    def __post_init__(self) -> None:
        for name in ("rows_per_tile", "tokens_per_chunk"):
            value = getattr(self, name)
            if value < 16 or value & (value - 1):
                raise ValueError(f"{name}={value} must be a power of two, at least 16.")
        if self.num_splits < 1:
            raise ValueError(f"num_splits={self.num_splits} must be at least 1.")


def triton_tiling(
    *,
    num_seqs: int,
    max_queries: int,
    group: int,
    kv_heads: int,
    head_dim: int,
    max_context: int,
    products: str,
    device_kind: str | None,
) -> TritonTiling:
    """Tiles that compile without spills for A100 and H100, in 99 KiB of shared memory.

    Not timed. Keys are split where the tiles of the batch, each of
    them a program per kv head, would leave multiprocessors without work.

    Args:
      max_queries: of the whole batch; 1 for decode, where each sequence has one.
      max_context: tokens that a row of the table has room for.
      products: of the kernel; those in float32 take the most registers.
    """
    width = next_power_of_two(head_dim) if head_dim <= 256 else 512
    rows = max_queries * group
    most_rows = {"float32": 16, "split": 32, "bfloat16": 64}[products]
    if width == 512:
        most_rows = min(most_rows, 32 if products == "bfloat16" else 16)
    rows_per_tile = min(most_rows, next_power_of_two(rows, MIN_DOT))
    tokens_per_chunk = 64 if width <= 128 else 32
    if products == "float32":
        tokens_per_chunk //= 2
    tiles = -(-rows // rows_per_tile) + num_seqs
    if max_queries == 1:
        tiles = num_seqs * -(-group // rows_per_tile)
    most_thin = 16 if products == "split" else 32
    is_wide = width == 512 or (rows_per_tile > most_thin and width >= 128)
    return TritonTiling(
        rows_per_tile=rows_per_tile,
        tokens_per_chunk=tokens_per_chunk,
        num_splits=num_splits(tiles * kv_heads, max_context, device_kind),
        num_warps=8 if is_wide else 4,
        num_stages=2,
    )

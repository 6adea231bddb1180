"""Tile sizes as a pure function of shapes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """How much one inner step works on."""

    blocks_per_chunk: int  # of K and V, read at once
    queries_per_tile: int  # of one sequence; ragged only

    def __post_init__(self) -> None:
        if self.blocks_per_chunk < 1 or self.queries_per_tile < 1:
            raise ValueError(
                f"blocks_per_chunk={self.blocks_per_chunk} and "
                f"queries_per_tile={self.queries_per_tile} must be at least 1."
            )


# measured on 2 CPU cores, contexts 512..1,024, H·D 128..2,048
XLA_CHUNK_TOKENS = 128
XLA_QUERIES_PER_TILE = 32


def xla_tiling(block_size: int, blocks_per_sequence: int) -> Tiling:
    """About 128 positions a chunk whatever the block size, so that the cost of a loop
    step is spread, and never more than the table is wide."""
    chunk = max(1, XLA_CHUNK_TOKENS // block_size)
    return Tiling(
        blocks_per_chunk=min(chunk, max(1, blocks_per_sequence)),
        queries_per_tile=XLA_QUERIES_PER_TILE,
    )

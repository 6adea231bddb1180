"""Tile sizes as pure functions of shapes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """How much one inner step works on."""

    blocks_per_chunk: int  # of K and V, read at once
    queries_per_tile: int  # of one sequence; decode has one

    def __post_init__(self) -> None:
        if self.blocks_per_chunk < 1 or self.queries_per_tile < 1:
            raise ValueError(
                f"blocks_per_chunk={self.blocks_per_chunk} and "
                f"queries_per_tile={self.queries_per_tile} must be at least 1."
            )


# For `xla`, measured on 2 CPU cores at contexts of 200 to 1,024 tokens, H·D 128 to 2,048:
# a lone query wants long chunks, which spread the cost of a loop step; a tile of 32
# queries is within noise of 64 and wastes less on short prompts, 16 is 1.4x slower.
DECODE_CHUNK_TOKENS = 256
RAGGED_CHUNK_TOKENS = 128
RAGGED_QUERIES_PER_TILE = 32
# Expanding a latent into K and V costs as much as about 170 queries that read it absorbed
# (DeepSeek's 512 + 64 and 128 + 128), once per tile.
EXPANDED_QUERIES_PER_TILE = 512


def decode_tiling(block_size: int, blocks_per_sequence: int) -> Tiling:
    """Chunks of about the same number of positions whatever the block size."""
    return Tiling(
        blocks_per_chunk=blocks_of(DECODE_CHUNK_TOKENS, block_size, blocks_per_sequence),
        queries_per_tile=1,
    )


def ragged_tiling(
    block_size: int,
    blocks_per_sequence: int,
    queries_per_tile: int = RAGGED_QUERIES_PER_TILE,
) -> Tiling:
    """As `decode_tiling`, for runs of queries."""
    return Tiling(
        blocks_per_chunk=blocks_of(RAGGED_CHUNK_TOKENS, block_size, blocks_per_sequence),
        queries_per_tile=queries_per_tile,
    )


def blocks_of(tokens: int, block_size: int, blocks_per_sequence: int) -> int:
    """Never more than the table is wide."""
    return min(max(1, tokens // block_size), blocks_per_sequence)

"""Tile sizes of the TPU kernel, checked against the VMEM of each chip."""

from dataclasses import dataclass

import numpy as np

from pallas_kernels.layout import TPU_ROW_TILE, KVLayout
from pallas_kernels.paged_attention.tiling import Tiling, blocks_of
from pallas_kernels.paged_attention.tpu.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuChip:
    """What a TPU kernel must fit, per core."""

    vmem_bytes: int
    num_cores: int  # that one program runs on


# By the name that jax gives a device. The sizes are those at which the compiler of libtpu
# refuses a larger buffer; unless told so it lets a kernel use 16 MiB (v6e: 32).
TPU_CHIPS = {
    "TPU v4": TpuChip(vmem_bytes=16 * 2**20, num_cores=2),
    "TPU v5 lite": TpuChip(vmem_bytes=128 * 2**20, num_cores=1),
    "TPU v5": TpuChip(vmem_bytes=64 * 2**20, num_cores=2),
    "TPU v5p": TpuChip(vmem_bytes=64 * 2**20, num_cores=2),
    "TPU v6 lite": TpuChip(vmem_bytes=128 * 2**20, num_cores=1),
}
ANY_TPU = TPU_CHIPS["TPU v4"]  # the smallest; two steps on one core cost little
# A chunk so large that its copy takes longer than a loop step's fixed costs, unless its
# logits would be too many for the vector unit to keep up.
TPU_CHUNK_BYTES = 2**20
TPU_LOGITS_BYTES = 2**20
TPU_CHUNK_TOKENS = {"decode": 1024, "ragged": 512}
TPU_ROWS_PER_TILE = 256  # of queries times query heads of a kv head
TPU_QUERY_ROWS_PER_TILE = 4096  # of all heads; more are slow to compile
TPU_VMEM_SHARE = 0.75  # of a chip's; the rest is the compiler's


def tpu_chip(device_kind: str | None) -> TpuChip:
    """The chip of that name, for None one that no chip is smaller than."""
    if device_kind is None:
        return ANY_TPU
    if device_kind not in TPU_CHIPS:
        raise ValueError(
            f"{device_kind=} is not known; choose from {tuple(TPU_CHIPS)}, or pass None "
            "for tiles that fit all of them."
        )
    return TPU_CHIPS[device_kind]


def _half(queries: int) -> int:
    """In whole tiles of rows as long as there are two."""
    if queries > TPU_ROW_TILE:
        return -(-queries // 2 // TPU_ROW_TILE) * TPU_ROW_TILE
    return -(-queries // 2)


def tpu_tiling(
    device_kind: str | None,
    *,
    layout: KVLayout,
    query_dtype: np.dtype,
    block_size: int,
    blocks_per_sequence: int,
    num_heads: int,
    num_queries: int,
) -> Tiling:
    """The largest tile up to the sizes above that fits the chip's VMEM.

    Args:
      num_queries: of all sequences; 1 for decode.

    Raises:
      ValueError: an unknown chip, or one on which not even the smallest tile fits.
    """
    chip = tpu_chip(device_kind)
    budget = int(chip.vmem_bytes * TPU_VMEM_SHARE)
    groups = num_heads // layout.kv_heads
    queries, most_tokens = 1, TPU_CHUNK_TOKENS["decode"]
    if num_queries > 1:
        most_tokens = TPU_CHUNK_TOKENS["ragged"]
        queries = min(TPU_ROWS_PER_TILE // groups, TPU_QUERY_ROWS_PER_TILE // num_heads)
        queries = -(-max(min(queries, num_queries), 1) // TPU_ROW_TILE) * TPU_ROW_TILE
    chunk_bytes = TPU_CHUNK_BYTES // layout.bytes_per_block(block_size) * block_size
    blocks = blocks_of(min(most_tokens, chunk_bytes), block_size, blocks_per_sequence)
    while True:
        plan = Plan(
            layout=layout,
            block_size=block_size,
            blocks_per_sequence=blocks_per_sequence,
            blocks_per_chunk=blocks,
            queries_per_tile=queries,
            num_heads=num_heads,
            num_cores=chip.num_cores,
            query_dtype=query_dtype,
        )
        fits = plan.vmem_bytes <= budget
        if fits and (plan.logits_bytes <= TPU_LOGITS_BYTES or blocks == 1):
            return Tiling(blocks_per_chunk=blocks, queries_per_tile=queries)
        can_halve_queries = not fits and queries > 1
        if can_halve_queries and (queries * groups >= blocks * block_size or blocks == 1):
            queries = _half(queries)
        elif blocks > 1:
            blocks //= 2
        else:
            raise ValueError(
                f"a tile of {blocks=} and {queries=} needs {plan.vmem_bytes} bytes of "
                f"VMEM, {device_kind=} has {budget} for it; use smaller blocks than "
                f"{block_size=}, or shard the {layout.kv_heads} kv heads."
            )

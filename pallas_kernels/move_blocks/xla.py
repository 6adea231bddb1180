"""The moves as gathers and scatters of whole blocks, which XLA does in place."""

import jax
from jaxtyping import Array, Int32

from pallas_kernels.kv_blocks import KVBlocks


def copy_blocks_xla(
    cache: KVBlocks, src: Int32[Array, "n"], dst: Int32[Array, "n"]
) -> KVBlocks:
    """See `pallas_kernels.move_blocks.copy_blocks`. Holds the n blocks once."""
    return scatter_blocks_xla(cache, dst, gather_blocks_xla(cache, src))


def gather_blocks_xla(cache: KVBlocks, blocks: Int32[Array, "n"]) -> KVBlocks:
    """See `pallas_kernels.move_blocks.gather_blocks`."""
    return jax.tree.map(lambda x: x[:, blocks], cache)


def scatter_blocks_xla(
    cache: KVBlocks, blocks: Int32[Array, "n"], moved: KVBlocks
) -> KVBlocks:
    """See `pallas_kernels.move_blocks.scatter_blocks`."""
    return jax.tree.map(lambda x, y: x.at[:, blocks].set(y), cache, moved)

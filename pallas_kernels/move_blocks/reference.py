"""The specification of the moves: one block after the other."""

import jax
from jax import lax
from jaxtyping import Array, Int32

from pallas_kernels.kv_blocks import KVBlocks


def copy_blocks_reference(
    cache: KVBlocks, src: Int32[Array, "n"], dst: Int32[Array, "n"]
) -> KVBlocks:
    """See `pallas_kernels.move_blocks.copy_blocks`."""

    def copy(i, cache: KVBlocks) -> KVBlocks:
        return jax.tree.map(lambda x: x.at[:, dst[i]].set(x[:, src[i]]), cache)

    return lax.fori_loop(0, len(src), copy, cache)


def gather_blocks_reference(cache: KVBlocks, blocks: Int32[Array, "n"]) -> KVBlocks:
    """See `pallas_kernels.move_blocks.gather_blocks`."""
    return jax.tree.map(lambda x: lax.map(lambda b: x[:, b], blocks).swapaxes(0, 1), cache)


def scatter_blocks_reference(
    cache: KVBlocks, blocks: Int32[Array, "n"], moved: KVBlocks
) -> KVBlocks:
    """See `pallas_kernels.move_blocks.scatter_blocks`."""

    def put(i, cache: KVBlocks) -> KVBlocks:
        return jax.tree.map(lambda x, y: x.at[:, blocks[i]].set(y[:, i]), cache, moved)

    return lax.fori_loop(0, len(blocks), put, cache)

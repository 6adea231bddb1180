"""The moves as foreign calls that copy the bytes of whole blocks."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int32

from pallas_kernels.cpu_rows import move_rows
from pallas_kernels.kv_blocks import KVBlocks


def copy_blocks_cpu(
    cache: KVBlocks, src: Int32[Array, "n"], dst: Int32[Array, "n"]
) -> KVBlocks:
    """See `pallas_kernels.move_blocks.copy_blocks`."""
    return jax.tree.map(lambda x: move_rows(x, None, dst, src, row_axes=x.ndim - 2), cache)


def gather_blocks_cpu(cache: KVBlocks, blocks: Int32[Array, "n"]) -> KVBlocks:
    """See `pallas_kernels.move_blocks.gather_blocks`."""
    places = jnp.arange(len(blocks), dtype=jnp.int32)

    def gather(x):
        shape = (x.shape[0], len(blocks), *x.shape[2:])
        target = jax.ShapeDtypeStruct(shape, x.dtype)
        return move_rows(target, x, places, blocks, row_axes=x.ndim - 2)

    return jax.tree.map(gather, cache)


def scatter_blocks_cpu(
    cache: KVBlocks, blocks: Int32[Array, "n"], moved: KVBlocks
) -> KVBlocks:
    """See `pallas_kernels.move_blocks.scatter_blocks`."""
    places = jnp.arange(len(blocks), dtype=jnp.int32)
    return jax.tree.map(
        lambda x, y: move_rows(x, y, blocks, places, row_axes=x.ndim - 2), cache, moved
    )

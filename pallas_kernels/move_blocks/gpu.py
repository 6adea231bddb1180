"""The moves in Pallas Mosaic GPU: blocks are copied by TMA, layer by layer.

Scales are left to XLA, in place as well: those of a small block are too few bytes.
"""

import jax.numpy as jnp
from jaxtyping import Array, Int32, Shaped

from pallas_kernels.gpu_moves import move_rows
from pallas_kernels.kv_blocks import KVBlocks


def _rows(blocks: Int32[Array, "n"], num_layers: int, num_blocks: int) -> Array:
    """Of each block in each layer, if all layers lie in one list."""
    layer = jnp.arange(num_layers, dtype=jnp.int32)
    return (layer[:, None] * num_blocks + blocks).reshape(-1)


def _flat(kv: Shaped[Array, "L N *block"]) -> Shaped[Array, "rows *block"]:
    return kv.reshape(-1, *kv.shape[2:])


def copy_blocks_gpu(
    cache: KVBlocks,
    src: Int32[Array, "n"],
    dst: Int32[Array, "n"],
    *,
    interpret: bool = False,
) -> KVBlocks:
    """See `pallas_kernels.move_blocks.copy_blocks`."""
    sizes = (cache.num_layers, cache.num_blocks)
    kv = move_rows(
        None,
        _rows(src, *sizes),
        _flat(cache.kv),
        _rows(dst, *sizes),
        interpret=interpret,
    ).reshape(cache.kv.shape)
    scales = cache.scales
    if scales is not None:
        scales = scales.at[:, dst].set(scales[:, src])
    return KVBlocks(kv=kv, scales=scales, layout=cache.layout)


def gather_blocks_gpu(
    cache: KVBlocks, blocks: Int32[Array, "n"], *, interpret: bool = False
) -> KVBlocks:
    """See `pallas_kernels.move_blocks.gather_blocks`."""
    kv, scales = cache.kv, cache.scales
    shape = (cache.num_layers, len(blocks), *kv.shape[2:])
    rows = _rows(blocks, cache.num_layers, cache.num_blocks)
    index = jnp.arange(len(rows), dtype=jnp.int32)
    moved = move_rows(_flat(kv), rows, None, index, interpret=interpret).reshape(shape)
    if scales is not None:
        scales = scales[:, blocks]
    return KVBlocks(kv=moved, scales=scales, layout=cache.layout)


def scatter_blocks_gpu(
    cache: KVBlocks,
    blocks: Int32[Array, "n"],
    moved: KVBlocks,
    *,
    interpret: bool = False,
) -> KVBlocks:
    """See `pallas_kernels.move_blocks.scatter_blocks`."""
    rows = _rows(blocks, cache.num_layers, cache.num_blocks)
    index = jnp.arange(len(rows), dtype=jnp.int32)
    kv = move_rows(_flat(moved.kv), index, _flat(cache.kv), rows, interpret=interpret)
    scales = cache.scales
    if scales is not None:
        scales = scales.at[:, blocks].set(moved.scales)
    return KVBlocks(kv=kv.reshape(cache.kv.shape), scales=scales, layout=cache.layout)

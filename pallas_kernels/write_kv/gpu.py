"""`write_kv` in Pallas Mosaic GPU: the rows of each token are copied to their slot by TMA.

Scales are left to XLA's scatter, in place as well: those of a token are too few bytes.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from pallas_kernels.gpu_moves import move_rows
from pallas_kernels.kv_blocks import KVBlocks, block_and_offset


def write_kv_gpu(
    cache: KVBlocks,
    new_kv: Float[Array, "T R D"],
    layer: Int32[Array, ""] | int,
    slots: Int32[Array, "T"],
    *,
    interpret: bool = False,
) -> KVBlocks:
    """See `pallas_kernels.write_kv.write_kv`."""
    kv = cache.kv
    stored, new_scales = cache.layout.encode(new_kv)
    num_slots = cache.num_blocks * cache.block_size
    written = move_rows(
        stored,
        jnp.arange(len(slots), dtype=jnp.int32),
        kv.reshape(cache.num_layers * num_slots, *kv.shape[3:]),
        layer * num_slots + slots,
        interpret=interpret,
    )
    scales = cache.scales
    if scales is not None and new_scales is not None:
        block, offset = block_and_offset(slots, cache.block_size)
        scales = scales.at[layer, block, offset].set(new_scales)
    return KVBlocks(kv=written.reshape(kv.shape), scales=scales, layout=cache.layout)

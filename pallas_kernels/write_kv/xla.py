"""`write_kv` as one scatter, which XLA does in place on a donated pool."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Float32, Int32

from pallas_kernels.kv_blocks import KVBlocks, block_and_offset


def write_kv_xla(
    cache: KVBlocks,
    new_kv: Float[Array, "T R D"],
    layer: Int32[Array, ""] | int,
    slots: Int32[Array, "T"],
) -> KVBlocks:
    """See `pallas_kernels.write_kv.write_kv`."""
    block, offset = block_and_offset(slots, cache.block_size)
    stored, new_scales = cache.layout.encode(new_kv)
    kv = cache.kv.at[layer, block, offset].set(stored)
    scales = cache.scales
    if scales is not None and new_scales is not None:
        scales = write_scales(scales, new_scales, layer, block, offset)
    return KVBlocks(kv=kv, scales=scales, layout=cache.layout)


def write_scales(
    scales: Float32[Array, "L N scale_rows lanes"],
    new_scales: Float32[Array, "T R"],
    layer: Int32[Array, ""] | int,
    block: Int32[Array, "T"],
    offset: Int32[Array, "T"],
) -> Float32[Array, "L N scale_rows lanes"]:
    """Puts the scale of row r of a token where `KVLayout.scale_shape` says."""
    num_rows = new_scales.shape[1]
    entry = offset[:, None] * num_rows + jnp.arange(num_rows, dtype=jnp.int32)
    lanes = jnp.int32(scales.shape[-1])
    target = scales.at[layer, block[:, None], lax.div(entry, lanes), lax.rem(entry, lanes)]
    return target.set(new_scales)

"""The specification of `write_kv`: one token after the other."""

from jax import lax
from jaxtyping import Array, Float, Int32

from pallas_kernels.kv_blocks import KVBlocks


def write_kv_reference(
    cache: KVBlocks,
    new_kv: Float[Array, "T R D"],
    layer: Int32[Array, ""] | int,
    slots: Int32[Array, "T"],
) -> KVBlocks:
    """See `pallas_kernels.write_kv.write_kv`."""
    layout, size = cache.layout, cache.block_size
    stored, new_scales = layout.encode(new_kv)

    def write_token(i, cache: KVBlocks) -> KVBlocks:
        block = lax.div(slots[i], size)
        offset = slots[i] - block * size
        kv = cache.kv.at[layer, block, offset].set(stored[i])
        scales = cache.scales
        if scales is not None and new_scales is not None:
            of_block = layout.unpack_scales(scales[layer, block], size)
            of_block = of_block.at[offset].set(new_scales[i])
            scales = scales.at[layer, block].set(layout.pack_scales(of_block))
        return KVBlocks(kv=kv, scales=scales, layout=layout)

    return lax.fori_loop(0, slots.shape[0], write_token, cache)

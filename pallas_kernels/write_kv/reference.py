"""The specification of `write_kv`: one token after the other."""

from jax import lax
from jaxtyping import Array, Float, Float32, Int32

from pallas_kernels.kv_blocks import KVBlocks
from pallas_kernels.layout import KVLayout


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
        kv = cache.kv.at[layer, block, slots[i] - block * size].set(stored[i])
        scales = cache.scales
        if scales is not None and new_scales is not None:
            scales = write_scales(scales, new_scales[i], layer, slots[i], layout, size)
        return KVBlocks(kv=kv, scales=scales, layout=layout)

    return lax.fori_loop(0, slots.shape[0], write_token, cache)


def write_scales(
    scales: Float32[Array, "L N scale_rows lanes"],
    new_scales: Float32[Array, "R"],
    layer: Int32[Array, ""] | int,
    slot: Int32[Array, ""],
    layout: KVLayout,
    block_size: int,
) -> Float32[Array, "L N scale_rows lanes"]:
    """Puts the scales of one token among those of its block."""
    block = lax.div(slot, block_size)
    of_block = layout.unpack_scales(scales[layer, block], block_size)
    of_block = of_block.at[slot - block * block_size].set(new_scales)
    return scales.at[layer, block].set(layout.pack_scales(of_block))

"""`write_kv` as one scatter, which XLA does in place on a donated pool."""

from jax import lax
from jaxtyping import Array, Float, Int32

from pallas_kernels.kv_blocks import KVBlocks, block_and_offset
from pallas_kernels.write_kv.reference import write_scales


def write_kv_xla(
    cache: KVBlocks,
    new_kv: Float[Array, "T R D"],
    layer: Int32[Array, ""] | int,
    slots: Int32[Array, "T"],
) -> KVBlocks:
    """See `pallas_kernels.write_kv.write_kv`."""
    layout, size = cache.layout, cache.block_size
    block, offset = block_and_offset(slots, size)
    stored, new_scales = layout.encode(new_kv)
    kv = cache.kv.at[layer, block, offset].set(stored)
    scales = cache.scales
    if scales is not None and new_scales is not None:
        if layout.platform == "tpu":
            # block by block: a scatter of few numbers into rows of lanes makes XLA lay out
            # all scales anew
            scales = lax.fori_loop(
                0,
                slots.shape[0],
                lambda i, scales: write_scales(
                    scales, new_scales[i], layer, slots[i], layout, size
                ),
                scales,
            )
        else:
            scales = scales.at[layer, block, offset].set(new_scales)
    return KVBlocks(kv=kv, scales=scales, layout=layout)

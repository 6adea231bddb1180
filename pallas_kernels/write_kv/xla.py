"""`write_kv` as one scatter, which XLA does in place on a donated pool."""

from jaxtyping import Array, Float, Int32

from pallas_kernels.layout import KVBlocks, block_and_offset


def write_kv_xla(
    cache: KVBlocks,
    new_kv: Float[Array, "T R D"],
    layer: Int32[Array, ""] | int,
    slots: Int32[Array, "T"],
) -> KVBlocks:
    """See `pallas_kernels.write_kv.write_kv`."""
    block, offset = block_and_offset(slots, cache.block_size)
    kv = cache.kv.at[layer, block, offset].set(cache.layout.pack(new_kv))
    return KVBlocks(kv=kv, scales=cache.scales, layout=cache.layout)

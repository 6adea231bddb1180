"""The specification of `write_kv`: one token after the other."""

from jax import lax
from jaxtyping import Array, Float, Int32

from pallas_kernels.layout import KVBlocks


def write_kv_reference(
    cache: KVBlocks,
    new_kv: Float[Array, "T R D"],
    layer: Int32[Array, ""] | int,
    slots: Int32[Array, "T"],
) -> KVBlocks:
    """See `pallas_kernels.write_kv.write_kv`."""
    stored = cache.layout.pack(new_kv)
    size = cache.block_size

    def write_token(i, kv):
        block = lax.div(slots[i], size)
        return kv.at[layer, block, slots[i] - block * size].set(stored[i])

    kv = lax.fori_loop(0, slots.shape[0], write_token, cache.kv)
    return KVBlocks(kv=kv, scales=cache.scales, layout=cache.layout)

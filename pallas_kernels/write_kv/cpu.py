"""`write_kv` as a foreign call that copies bytes into the donated pool."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from pallas_kernels.cpu_rows import move_rows
from pallas_kernels.kv_blocks import KVBlocks


def write_kv_cpu(
    cache: KVBlocks,
    new_kv: Float[Array, "T R D"],
    layer: Int32[Array, ""] | int,
    slots: Int32[Array, "T"],
) -> KVBlocks:
    """See `pallas_kernels.write_kv.write_kv`."""
    stored, new_scales = cache.layout.encode(new_kv)
    tokens = jnp.arange(len(slots), dtype=jnp.int32)
    row_axes = cache.kv.ndim - 3
    kv = move_rows(cache.kv, stored, slots, tokens, row_axes=row_axes, layer=layer)
    scales = cache.scales
    if scales is not None:
        scales = move_rows(scales, new_scales, slots, tokens, row_axes=1, layer=layer)
    return KVBlocks(kv=kv, scales=scales, layout=cache.layout)

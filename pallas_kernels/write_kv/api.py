"""The contract of `write_kv`, whatever implements it."""

from jaxtyping import Array, Float, Int32

from pallas_kernels.checks import choose, require_int32, require_layer
from pallas_kernels.kv_blocks import KVBlocks

IMPLEMENTATIONS = {
    name: f"pallas_kernels.write_kv.{name}"
    for name in ("reference", "xla", "tpu", "gpu", "gpu_triton", "cpu")
}


def write_kv(
    cache: KVBlocks,
    new_kv: Float[Array, "T R D"],
    layer: Int32[Array, ""] | int,
    slots: Int32[Array, "T"],
    *,
    implementation: str,
) -> KVBlocks:
    """Stores each token's rows (K, V, K, V, ..., or a latent) at its slot.

    slot = block · B + offset. In place when `cache` is donated. Padded tokens write to
    slot 0, in the null block. Slots lie in [0, N · B); any two that are equal must lie in
    block 0. Numbers are rounded to the pool's dtype, and quantised if it has scales.

    Raises:
      ValueError: shapes that disagree, slots that are not int32, an implementation that
        is not offered.
    """
    run = choose(IMPLEMENTATIONS, implementation, "write_kv", cache)
    check_write(cache, new_kv, slots)
    require_layer(layer, cache)
    if len(slots) == 0:  # which some compilers refuse
        return cache
    return run(cache, new_kv, layer, slots)


def check_write(cache: KVBlocks, new_kv, slots) -> None:
    """Raises a ValueError that names what disagrees; looks at shapes and dtypes only."""
    layout = cache.layout
    rows = (layout.num_rows, layout.head_dim)
    if new_kv.ndim != 3 or new_kv.shape[1:] != rows:
        raise ValueError(
            f"new_kv of shape {new_kv.shape} must be [T, {rows[0]}, {rows[1]}]: R rows "
            f"of D for the pool's kv_heads={layout.kv_heads}, head_dim={layout.head_dim} "
            f"({layout.packing})."
        )
    if slots.shape != new_kv.shape[:1]:
        raise ValueError(
            f"slots of shape {slots.shape} must have one entry per token of new_kv "
            f"{new_kv.shape}."
        )
    require_int32(slots=slots)

"""The contract of `write_kv`, whatever implements it."""

from jaxtyping import Array, Float, Int32

from pallas_kernels.checks import choose, require_int32
from pallas_kernels.layout import KVBlocks
from pallas_kernels.write_kv.reference import write_kv_reference
from pallas_kernels.write_kv.xla import write_kv_xla

IMPLEMENTATIONS = {"reference": write_kv_reference, "xla": write_kv_xla}


def write_kv(
    cache: KVBlocks,
    new_kv: Float[Array, "T R D"],
    layer: Int32[Array, ""] | int,
    slots: Int32[Array, "T"],
    *,
    implementation: str,
) -> KVBlocks:
    """Stores each token's rows (K, V, K, V, ...) at its slot = block · B + offset.

    In place when `cache` is donated. Padded tokens write to slot 0, in the null block.
    Slots lie in [0, N · B); any two that are equal must lie in block 0. Numbers are
    rounded to the pool's dtype.

    Raises:
      ValueError: shapes that disagree, slots that are not int32, an implementation that
        is not offered.
    """
    run = choose(IMPLEMENTATIONS, implementation, "write_kv")
    check_write(cache, new_kv, slots)
    return run(cache, new_kv, layer, slots)


def check_write(cache: KVBlocks, new_kv, slots) -> None:
    """Raises a ValueError that names what disagrees; looks at shapes and dtypes only."""
    layout = cache.layout
    rows = (2 * layout.kv_heads, layout.head_dim)
    if new_kv.ndim != 3 or new_kv.shape[1:] != rows:
        raise ValueError(
            f"new_kv of shape {new_kv.shape} must be [T, {rows[0]}, {rows[1]}]: 2K rows "
            f"of D for the pool's kv_heads={layout.kv_heads}, head_dim={layout.head_dim}."
        )
    if slots.shape != new_kv.shape[:1]:
        raise ValueError(
            f"slots of shape {slots.shape} must have one entry per token of new_kv "
            f"{new_kv.shape}."
        )
    require_int32(slots=slots)

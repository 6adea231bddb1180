"""The contract of the ops that move blocks, whatever implements them."""

import jax
from jaxtyping import Array, Int32

from pallas_kernels.checks import choose, require_int32
from pallas_kernels.kv_blocks import KVBlocks

IMPLEMENTATIONS = {
    name: f"pallas_kernels.move_blocks.{name}"
    for name in ("reference", "xla", "tpu", "gpu", "gpu_triton", "cpu")
}


def copy_blocks(
    cache: KVBlocks,
    src: Int32[Array, "n"],
    dst: Int32[Array, "n"],
    *,
    implementation: str,
) -> KVBlocks:
    """Copies block src[i] to block dst[i] in all layers, its scales too.

    In place when `cache` is donated. All entries lie in [0, N). Pairs (0, 0) pad the
    lists; but for them no two dst are equal and no dst is also a src.

    Raises:
      ValueError: lists of different lengths or not int32, an implementation that is not
        offered.
    """
    run = choose(IMPLEMENTATIONS, implementation, "copy_blocks", cache)
    check_blocks(src=src, dst=dst)
    if src.shape != dst.shape:
        raise ValueError(f"src {src.shape} and dst {dst.shape} must have equal lengths.")
    return run(cache, src, dst) if len(src) else cache


def gather_blocks(
    cache: KVBlocks, blocks: Int32[Array, "n"], *, implementation: str
) -> KVBlocks:
    """Copies blocks out of the pool, into one of n blocks: the way to the host tier.

    Block i of the result is blocks[i] in [0, N), scales included. No block of the result
    is a null block.

    Raises:
      ValueError: a list that is not int32, an implementation that is not offered.
    """
    run = choose(IMPLEMENTATIONS, implementation, "gather_blocks", cache)
    check_blocks(blocks=blocks)
    if len(blocks) == 0:  # which some compilers refuse
        return jax.tree.map(lambda x: x[:, :0], cache)
    return run(cache, blocks)


def scatter_blocks(
    cache: KVBlocks, blocks: Int32[Array, "n"], moved: KVBlocks, *, implementation: str
) -> KVBlocks:
    """Copies what `gather_blocks` made into the pool: block i becomes blocks[i].

    In place when `cache` is donated. Entries 0 pad the list; no other is named twice.

    Raises:
      ValueError: a list that is not int32 or not as long as `moved`, a `moved` of another
        layout or shape, an implementation that is not offered.
    """
    run = choose(IMPLEMENTATIONS, implementation, "scatter_blocks", cache)
    check_blocks(blocks=blocks)
    check_moved(cache, blocks, moved)
    return run(cache, blocks, moved) if len(blocks) else cache


def check_blocks(**lists) -> None:
    """Raises a ValueError that names the list; looks at shapes and dtypes only."""
    for name, blocks in lists.items():
        if blocks.ndim != 1:
            raise ValueError(f"{name} of shape {blocks.shape} must be a list of blocks.")
    require_int32(**lists)


def check_moved(cache: KVBlocks, blocks, moved: KVBlocks) -> None:
    """The same for the pool that is scattered."""
    if moved.layout != cache.layout:
        raise ValueError(
            f"moved has the layout {moved.layout}, the pool {cache.layout}; only blocks "
            "of the same layout can return."
        )
    expected = (cache.num_layers, len(blocks), *cache.kv.shape[2:])
    if moved.kv.shape != expected:
        raise ValueError(
            f"moved.kv of shape {moved.kv.shape} must be {expected}: all layers of "
            f"{len(blocks)} blocks."
        )

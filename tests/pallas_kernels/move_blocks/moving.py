"""Pools and lists for the tests of every implementation of the moves."""

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.kv_blocks import KVBlocks
from pallas_kernels.layout import kv_layout

NUM_LAYERS, NUM_BLOCKS, BLOCK_SIZE = 2, 9, 3
# Both ends of the pool, a padded pair, a source that is copied twice.
SRC = np.array([8, 1, 0, 5, 5], np.int32)
DST = np.array([2, 8 - 1, 0, 3, 1 + 5], np.int32)


def pool(
    dtype, platform, *, kv_heads=2, head_dim=24, value_dim=None, block_size=BLOCK_SIZE
) -> KVBlocks:
    """A pool of distinct numbers."""
    layout = kv_layout(kv_heads, head_dim, dtype, platform, value_dim)
    shape = (NUM_LAYERS, NUM_BLOCKS, block_size, layout.num_rows, head_dim)
    return KVBlocks.of_rows(layout, jax.random.normal(jax.random.key(3), shape))


def raw(x) -> np.ndarray:
    """Bytes of an array, so that NaN and bit patterns compare equal."""
    return np.asarray(x).view(np.uint8)


def assert_same_blocks(actual: KVBlocks, wanted: KVBlocks) -> None:
    """All arrays agree but for the null block, which nobody reads."""
    assert actual.layout == wanted.layout
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(raw(a[:, 1:]), raw(b[:, 1:]))


def copied(cache: KVBlocks) -> KVBlocks:
    """What `copy_blocks` of SRC to DST must give, by NumPy."""

    def copy(x):
        x = np.array(x)
        x[:, DST] = x[:, SRC]
        return jnp.asarray(x)

    return jax.tree.map(copy, cache)

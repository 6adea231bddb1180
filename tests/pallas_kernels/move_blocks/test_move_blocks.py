"""Blocks arrive whole, in all layers, with their scales, and nothing else changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.move_blocks import copy_blocks, gather_blocks, scatter_blocks
from tests.pallas_kernels.move_blocks.moving import (
    DST,
    SRC,
    assert_same_blocks,
    copied,
    pool,
    raw,
)

PORTABLE = pytest.mark.parametrize("implementation", ["reference", "xla"])
POOLS = pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "float8_e4m3fn"])
PLATFORMS = pytest.mark.parametrize("platform", ["cpu", "tpu"])


@PORTABLE
@POOLS
@PLATFORMS
@pytest.mark.parametrize("value_dim", [None, 16])
def test_copy(implementation, dtype, platform, value_dim):
    cache = pool(dtype, platform, kv_heads=1 if value_dim else 2, value_dim=value_dim)
    copy = jax.jit(copy_blocks, static_argnames="implementation")
    actual = copy(cache, jnp.asarray(SRC), jnp.asarray(DST), implementation=implementation)
    assert_same_blocks(actual, copied(cache))


@PORTABLE
@POOLS
@PLATFORMS
def test_swap_out_and_in(implementation, dtype, platform):
    """Blocks survive a way through another pool, to other places than they came from."""
    cache = pool(dtype, platform)
    moved = gather_blocks(cache, jnp.asarray(SRC), implementation=implementation)
    for part, whole in zip(jax.tree.leaves(moved), jax.tree.leaves(cache), strict=True):
        np.testing.assert_array_equal(raw(part), raw(whole[:, SRC]))
    back = scatter_blocks(cache, jnp.asarray(DST), moved, implementation=implementation)
    assert_same_blocks(back, copied(cache))


def test_errors():
    cache = pool("float32", "cpu")
    src, dst = jnp.asarray(SRC), jnp.asarray(DST)
    with pytest.raises(ValueError, match=r"src \(5,\) and dst \(4,\)"):
        copy_blocks.__wrapped__(cache, src, dst[:4], implementation="xla")
    with pytest.raises(ValueError, match="implementation='gpu' .*'gpu'.*for 'cpu'"):
        copy_blocks(cache, src, dst, implementation="gpu")
    with pytest.raises(ValueError, match="implementation='auto' of gather_blocks"):
        gather_blocks(cache, src, implementation="auto")
    moved = gather_blocks(cache, src[:2], implementation="xla")
    with pytest.raises(ValueError, match=r"moved.kv of shape \(2, 2, .*5 blocks"):
        scatter_blocks(cache, src, moved, implementation="xla")
    other = gather_blocks(pool("bfloat16", "cpu"), src, implementation="xla")
    with pytest.raises(ValueError, match="bfloat16.*only blocks of the same layout"):
        scatter_blocks(cache, src, other, implementation="xla")

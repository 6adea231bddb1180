"""Moves by bytes: whole blocks, all layers, scales, and nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("numba")

from pallas_kernels.kv_blocks import make_cache
from pallas_kernels.layout import kv_layout
from pallas_kernels.move_blocks import copy_blocks, gather_blocks, scatter_blocks
from tests.pallas_kernels.move_blocks.moving import (
    DST,
    SRC,
    assert_same_blocks,
    copied,
    pool,
    raw,
)

POOLS = pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "float8_e4m3fn"])


@POOLS
@pytest.mark.parametrize("value_dim", [None, 16])
def test_copy(dtype, value_dim):
    cache = pool(dtype, "cpu", kv_heads=1 if value_dim else 2, value_dim=value_dim)
    copy = jax.jit(copy_blocks, static_argnames="implementation")
    actual = copy(cache, jnp.asarray(SRC), jnp.asarray(DST), implementation="cpu")
    assert_same_blocks(actual, copied(cache))


@POOLS
@pytest.mark.parametrize("value_dim", [None, 16])
def test_swap_out_and_in(dtype, value_dim):
    cache = pool(dtype, "cpu", kv_heads=1 if value_dim else 2, value_dim=value_dim)
    moved = gather_blocks(cache, jnp.asarray(SRC), implementation="cpu")
    for part, whole in zip(jax.tree.leaves(moved), jax.tree.leaves(cache), strict=True):
        np.testing.assert_array_equal(raw(part), raw(whole[:, SRC]))
    back = scatter_blocks(cache, jnp.asarray(DST), moved, implementation="cpu")
    assert_same_blocks(back, copied(cache))


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_only_moved_blocks_are_held_twice(dtype):
    layout = kv_layout(2, 64, dtype, "cpu")
    cache = jax.eval_shape(
        lambda: make_cache(layout, num_layers=4, num_blocks=4096, block_size=16)
    )
    pool_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(cache))
    blocks = jax.ShapeDtypeStruct((8,), jnp.int32)

    def copy(cache, src, dst):
        return copy_blocks(cache, src, dst, implementation="cpu")

    def swap(cache, blocks):
        moved = gather_blocks(cache, blocks, implementation="cpu")
        return scatter_blocks(cache, blocks, moved, implementation="cpu")

    for op, lists in ((copy, (blocks, blocks)), (swap, (blocks,))):
        compiled = jax.jit(op, donate_argnums=0).lower(cache, *lists).compile()
        memory = compiled.memory_analysis()
        assert memory.alias_size_in_bytes == pool_bytes
        assert memory.temp_size_in_bytes < 0.01 * pool_bytes

"""The Triton write, interpreted, against the reference."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.kv_blocks import KVBlocks
from pallas_kernels.layout import kv_layout
from pallas_kernels.write_kv.gpu_triton import write_kv_gpu_triton
from pallas_kernels.write_kv.reference import write_kv_reference

NUM_LAYERS, NUM_BLOCKS, BLOCK_SIZE = 2, 6, 3
# the pool's last slot, its first beyond the null block, one in between, padding
SLOTS = (NUM_BLOCKS * BLOCK_SIZE - 1, BLOCK_SIZE, 7, 0, 0)


@pytest.mark.parametrize(
    ("dtype", "kv_heads", "head_dim", "value_dim"),
    [
        ("float32", 3, 64, None),
        ("bfloat16", 1, 24, None),
        ("int8", 2, 80, None),
        ("float8_e4m3fn", 1, 40, 32),
        ("bfloat16", 9, 128, None),  # more than a program copies at once
    ],
)
def test_is_the_reference(dtype, kv_heads, head_dim, value_dim):
    layout = kv_layout(kv_heads, head_dim, dtype, "gpu", value_dim)
    shape = (NUM_LAYERS, NUM_BLOCKS, BLOCK_SIZE, layout.num_rows, head_dim)
    cache = KVBlocks.of_rows(layout, jax.random.normal(jax.random.key(1), shape))
    rows = jax.random.normal(jax.random.key(2), (len(SLOTS), layout.num_rows, head_dim))
    arguments = (cache, rows, jnp.int32(1), jnp.asarray(SLOTS, jnp.int32))
    written = jax.jit(functools.partial(write_kv_gpu_triton, interpret=True))(*arguments)
    assert written.layout == layout
    wanted = write_kv_reference(*arguments)
    for a, b, before in zip(*map(jax.tree.leaves, (written, wanted, cache)), strict=True):
        raw = [np.asarray(x).view(np.uint8) for x in (a, b, before)]
        np.testing.assert_array_equal(raw[0][:, 1:], raw[1][:, 1:])
        np.testing.assert_array_equal(raw[0][0], raw[2][0])  # the other layer
        assert (raw[0][1, 1:] != raw[2][1, 1:]).any()


def test_no_tokens():
    layout = kv_layout(1, 16, "float32", "gpu")
    shape = (NUM_LAYERS, NUM_BLOCKS, BLOCK_SIZE, 2, 16)
    cache = KVBlocks.of_rows(layout, jax.random.normal(jax.random.key(1), shape))
    rows, slots = jnp.zeros((0, 2, 16)), jnp.zeros(0, jnp.int32)
    written = write_kv_gpu_triton(cache, rows, 1, slots, interpret=True)
    np.testing.assert_array_equal(written.kv, cache.kv)

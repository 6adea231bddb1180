"""`write_kv` puts every token where its slot says, in every layout, and nowhere else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.kv_blocks import KVBlocks, make_cache
from pallas_kernels.layout import kv_layout
from pallas_kernels.write_kv import write_kv
from pallas_kernels.write_kv.api import check_write

NUM_LAYERS, NUM_BLOCKS, BLOCK_SIZE = 2, 6, 3


def filled_cache(kv_heads, head_dim, dtype, platform):
    layout = kv_layout(kv_heads, head_dim, dtype, platform)
    rows = jax.random.normal(
        jax.random.key(1), (NUM_LAYERS, NUM_BLOCKS, BLOCK_SIZE, 2 * kv_heads, head_dim)
    )
    return KVBlocks.of_rows(layout, rows)


@pytest.mark.parametrize("implementation", ["reference", "xla"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
@pytest.mark.parametrize(("kv_heads", "head_dim"), [(3, 64), (1, 24)])
def test_tokens_land_in_their_slots(implementation, dtype, platform, kv_heads, head_dim):
    cache = filled_cache(kv_heads, head_dim, dtype, platform)
    # the pool's last slot, its first beyond the null block, one in between, padding
    slots = np.array([NUM_BLOCKS * BLOCK_SIZE - 1, BLOCK_SIZE, 7, 0, 0], np.int32)
    new_kv = jax.random.normal(jax.random.key(2), (len(slots), 2 * kv_heads, head_dim))
    wanted = np.array(cache.rows(), np.float32)
    for slot, rows in zip(slots[:3], new_kv.astype(dtype), strict=False):
        wanted[1, slot // BLOCK_SIZE, slot % BLOCK_SIZE] = rows
    write = jax.jit(write_kv, static_argnames="implementation")
    written = write(
        cache, new_kv, jnp.int32(1), jnp.asarray(slots), implementation=implementation
    )
    actual = np.asarray(written.rows(), np.float32)
    np.testing.assert_array_equal(actual[0], wanted[0])
    np.testing.assert_array_equal(actual[1, 1:], wanted[1, 1:])
    np.testing.assert_array_equal(actual[1, 0, 1:], wanted[1, 0, 1:])
    assert written.layout == cache.layout


@pytest.mark.parametrize("implementation", ["reference", "xla"])
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float8_e4m3fn"])
@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize("value_dim", [None, 16])
def test_quantised_and_latent_rows(implementation, dtype, platform, value_dim):
    """Written row by row, a pool equals one that was made whole, scales included."""
    layout = kv_layout(1 if value_dim else 3, 24, dtype, platform, value_dim)
    size = 4 if value_dim else BLOCK_SIZE  # of latents on TPU, one that stays in place
    num_slots = NUM_BLOCKS * size
    rows = jax.random.normal(jax.random.key(2), (num_slots, layout.num_rows, 24))
    empty = make_cache(layout, num_layers=1, num_blocks=NUM_BLOCKS, block_size=size)
    slots = np.random.default_rng(0).permutation(num_slots).astype(np.int32)
    write = jax.jit(write_kv, static_argnames="implementation")
    written = write(
        empty, rows[slots], jnp.int32(0), jnp.asarray(slots), implementation=implementation
    )
    shape = (1, NUM_BLOCKS, size, layout.num_rows, 24)
    whole = KVBlocks.of_rows(layout, rows.reshape(shape))
    for a, b in zip(jax.tree.leaves(written), jax.tree.leaves(whole), strict=True):
        # compiled apart, a division may differ in its last bit
        a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_errors():
    layout = kv_layout(2, 8, "float32", "cpu")
    cache = make_cache(layout, num_layers=1, num_blocks=2, block_size=2)
    rows, slots = jnp.zeros((3, 4, 8)), jnp.zeros(3, jnp.int32)
    check_write(cache, rows, slots)
    with pytest.raises(ValueError, match=r"\(3, 2, 8\) must be \[T, 4, 8\].*kv_heads=2"):
        check_write(cache, rows[:, :2], slots)
    with pytest.raises(ValueError, match=r"slots of shape \(2,\).*\(3, 4, 8\)"):
        check_write(cache, rows, slots[:2])
    with pytest.raises(ValueError, match="slots has dtype float32"):
        check_write(cache, rows, slots.astype(jnp.float32))
    for name in ("tpu", "gpu", "gpu_triton", "auto"):
        with pytest.raises(ValueError, match=rf"implementation='{name}' of write_kv"):
            write_kv(cache, rows, jnp.int32(0), slots, implementation=name)

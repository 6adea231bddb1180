"""The layouts of FACTS' table, and the pytree that carries a pool."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.layout import KVBlocks, kv_layout, make_cache


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize(("kv_heads", "head_dim"), [(1, 64), (3, 80), (8, 128)])
def test_cpu_and_gpu_store_what_the_caller_sees(platform, kv_heads, head_dim):
    layout = kv_layout(kv_heads, head_dim, "float32", platform)
    assert (layout.rows, layout.padded_dim) == (2 * kv_heads, head_dim)
    assert layout.padding_factor == 1.0
    assert layout.bytes_per_token == 2 * kv_heads * head_dim * 4


@pytest.mark.parametrize(
    ("kv_heads", "head_dim", "dtype", "rows", "padded_dim", "packing", "padding"),
    [
        (8, 128, "bfloat16", 16, 128, "interleaved", 1.0),
        (1, 256, "bfloat16", 2, 256, "interleaved", 1.0),
        (2, 128, "float32", 4, 128, "interleaved", 1.0),
        (3, 128, "bfloat16", 8, 128, "interleaved", 8 / 6),
        (5, 128, "bfloat16", 16, 128, "interleaved", 16 / 10),
        (8, 96, "bfloat16", 16, 128, "interleaved", 128 / 96),
        (4, 80, "bfloat16", 8, 128, "interleaved", 128 / 80),
        (2, 32, "float32", 4, 128, "interleaved", 4.0),
        (8, 64, "bfloat16", 8, 128, "packed", 1.0),
        (3, 64, "bfloat16", 4, 128, "packed", 4 / 3),
        (1, 64, "bfloat16", 2, 128, "packed", 2.0),
        (1, 128, "int8", 4, 128, "interleaved", 2.0),
        (2, 64, "float8_e4m3fn", 4, 128, "packed", 2.0),
        (3, 128, "int8", 8, 128, "interleaved", 8 / 6),
    ],
)
def test_tpu_layouts(kv_heads, head_dim, dtype, rows, padded_dim, packing, padding):
    layout = kv_layout(kv_heads, head_dim, jnp.dtype(dtype), "tpu")
    assert (layout.rows, layout.padded_dim, layout.packing) == (rows, padded_dim, packing)
    assert layout.padding_factor == pytest.approx(padding)


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("kv_heads", "head_dim"), [(1, 64), (3, 64), (3, 24), (2, 128)])
def test_pack_and_unpack_are_inverse(platform, dtype, kv_heads, head_dim):
    layout = kv_layout(kv_heads, head_dim, dtype, platform)
    shape = (2, 5, 2 * kv_heads, head_dim)
    rows = jax.random.normal(jax.random.key(0), shape).astype(dtype)
    stored = layout.pack(rows)
    assert stored.shape == (2, 5, layout.rows, layout.padded_dim)
    assert stored.dtype == layout.storage_dtype
    np.testing.assert_array_equal(layout.unpack(stored), rows)
    k, v = layout.split(stored)
    np.testing.assert_array_equal(k, rows[..., 0::2, :])
    np.testing.assert_array_equal(v, rows[..., 1::2, :])


def test_bytes_per_token_are_those_of_the_array():
    for platform in ("cpu", "gpu", "tpu"):
        layout = kv_layout(3, 24, "bfloat16", platform)
        cache = make_cache(
            layout, num_layers=2, num_blocks=4, block_size=5, dtype="bfloat16"
        )
        assert cache.kv.nbytes == layout.bytes_per_token * 2 * 4 * 5
        assert (cache.num_layers, cache.num_blocks, cache.block_size) == (2, 4, 5)


def test_pool_is_a_pytree_of_anything():
    layout = kv_layout(1, 8, "float32", "cpu")
    cache = make_cache(layout, num_layers=1, num_blocks=2, block_size=2, dtype="float32")
    shapes = jax.tree.map(lambda x: x.shape, cache)
    assert shapes.kv == (1, 2, 2, 2, 8) and shapes.layout == layout
    assert jax.eval_shape(lambda c: c, cache).kv.shape == cache.kv.shape
    assert len(jax.tree.leaves(cache)) == 1
    (path, _), *_ = jax.tree_util.tree_flatten_with_path(cache)[0]
    assert jax.tree_util.keystr(path) == ".kv"
    doubled = jax.tree.map(lambda x: x + 1, cache)
    assert isinstance(doubled, KVBlocks) and doubled.scales is None


def test_errors():
    with pytest.raises(ValueError, match="platform='npu'.*cpu"):
        kv_layout(1, 8, "float32", "npu")
    with pytest.raises(ValueError, match="kv_heads_per_shard=0"):
        kv_layout(0, 8, "float32", "cpu")
    layout = kv_layout(2, 8, "float32", "cpu")
    sizes = dict(num_layers=1, num_blocks=2, block_size=2)
    with pytest.raises(ValueError, match="num_blocks=1 at least 2"):
        make_cache(layout, **sizes | dict(num_blocks=1), dtype="float32")
    with pytest.raises(ValueError, match="bfloat16 differs from float32"):
        make_cache(layout, **sizes, dtype="bfloat16")
    int8 = kv_layout(2, 8, "int8", "cpu")
    with pytest.raises(ValueError, match="int8 is not offered"):
        make_cache(int8, **sizes, dtype="int8")
    with pytest.raises(ValueError, match=r"\[\.\.\., 2, 8\].*kv_heads=2"):
        layout.pack(jnp.zeros((3, 2, 8)))

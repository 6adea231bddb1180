"""The layouts of FACTS' table, and the pytree that carries a pool."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.kv_blocks import KVBlocks, make_cache
from pallas_kernels.layout import POOL_DTYPES, kv_layout


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize(("kv_heads", "head_dim"), [(1, 64), (3, 80), (8, 128)])
def test_cpu_and_gpu_store_what_the_caller_sees(platform, kv_heads, head_dim):
    layout = kv_layout(kv_heads, head_dim, "float32", platform)
    assert (layout.rows, layout.padded_dim) == (2 * kv_heads, head_dim)
    assert layout.padding_factor(16) == 1.0
    assert layout.bytes_per_block(5) == 5 * 2 * kv_heads * head_dim * 4


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
    physical = layout.rows * layout.padded_dim
    assert physical / (2 * kv_heads * head_dim) == pytest.approx(padding)


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
    k, v = layout.split(rows)
    np.testing.assert_array_equal(k, rows[..., 0::2, :])
    np.testing.assert_array_equal(v, rows[..., 1::2, :])


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
@pytest.mark.parametrize("dtype", POOL_DTYPES)
@pytest.mark.parametrize("value_dim", [None, 16])
def test_bytes_are_those_of_the_arrays(platform, dtype, value_dim):
    layout = kv_layout(1 if value_dim else 3, 24, dtype, platform, value_dim)
    size = 8 if value_dim else 5
    cache = make_cache(layout, num_layers=2, num_blocks=4, block_size=size)
    arrays = jax.tree.leaves(cache)
    assert sum(x.nbytes for x in arrays) == layout.bytes_per_block(size) * 2 * 4
    assert len(arrays) == (2 if layout.is_quantized else 1)
    assert (cache.num_layers, cache.num_blocks, cache.block_size) == (2, 4, size)


@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [("bfloat16", (2, 4, 8, 16, 256)), ("int8", (4, 8, 16)), ("float32", (2, 4, 8))],
)
def test_latent_pools_on_tpu_have_block_sizes_that_stay_in_place(dtype, sizes):
    layout = kv_layout(1, 576, dtype, "tpu", value_dim=512)
    for size in (1, 2, 3, 4, 5, 7, 8, 12, 16, 256):
        if layout.keeps_in_place(size):
            make_cache(layout, num_layers=1, num_blocks=2, block_size=size)
        else:
            with pytest.raises(ValueError, match=f"block_size={size} of a latent pool"):
                make_cache(layout, num_layers=1, num_blocks=2, block_size=size)
    assert all(map(layout.keeps_in_place, sizes))
    assert not any(map(layout.keeps_in_place, (1, 3, 5, 7, 12)))
    on_gpu = kv_layout(1, 576, dtype, "gpu", value_dim=512)
    assert on_gpu.keeps_in_place(3)


def test_padding_factor_counts_scales():
    layout = kv_layout(8, 128, "int8", "tpu")
    logical = 16 * 16 * (128 + 4)  # tokens, rows, numbers and a scale
    assert layout.padding_factor(16) == layout.bytes_per_block(16) / logical == 1.0
    # a lone token's 16 scales take two rows of 128 lanes
    assert layout.padding_factor(1) == (16 * 128 + 2 * 128 * 4) / (16 * (128 + 4))


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_a_latent_is_stored_once(platform):
    layout = kv_layout(1, 576, "bfloat16", platform, value_dim=512)
    assert layout.block_shape(16) == (16, 640 if platform == "tpu" else 576)
    rows = jax.random.normal(jax.random.key(0), (3, 16, 1, 576)).astype(jnp.bfloat16)
    stored = layout.pack(rows)
    assert stored.shape == (3, *layout.block_shape(16))
    np.testing.assert_array_equal(layout.unpack(stored), rows)
    k, v = layout.split(layout.unpack(stored))
    np.testing.assert_array_equal(k, rows)
    np.testing.assert_array_equal(v, rows[..., :512])


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
@pytest.mark.parametrize("block_size", [1, 3, 16, 100])
def test_scales_of_a_block(platform, block_size):
    layout = kv_layout(3, 8, "int8", platform)
    scales = jax.random.uniform(jax.random.key(0), (2, block_size, 6))
    stored = layout.pack_scales(scales)
    assert stored.shape == (2, *layout.scale_shape(block_size))
    np.testing.assert_array_equal(layout.unpack_scales(stored, block_size), scales)
    flat = np.reshape(stored, (2, -1))
    assert flat[1, (block_size - 1) * 6 + 4] == scales[1, block_size - 1, 4]


def test_pool_is_a_pytree_of_anything():
    layout = kv_layout(1, 8, "float32", "cpu")
    cache = make_cache(layout, num_layers=1, num_blocks=2, block_size=2)
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
        make_cache(layout, **sizes | dict(num_blocks=1))
    with pytest.raises(ValueError, match="float16 is not offered.*bfloat16"):
        kv_layout(2, 8, "float16", "cpu")
    with pytest.raises(ValueError, match="value_dim=9 .*head_dim=8"):
        kv_layout(1, 8, "float32", "cpu", value_dim=9)
    with pytest.raises(ValueError, match="kv_heads_per_shard=1, got 2"):
        kv_layout(2, 8, "float32", "cpu", value_dim=4)
    with pytest.raises(ValueError, match=r"\[\.\.\., 2, 8\].*kv_heads=2"):
        layout.pack(jnp.zeros((3, 2, 8)))

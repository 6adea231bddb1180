"""What rounding to eight bits costs, and that it costs no more."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.kv_blocks import KVBlocks
from pallas_kernels.layout import kv_layout
from pallas_kernels.quantization import dequantize, quantize

# Half a step: of 127 equal ones, or of the 3 bits behind fp8's leading one.
INT8_ERROR = 0.5 / 127  # of the row's largest magnitude
FP8_ERROR = 2**-4  # of the number itself
FP8_SMALLEST = 2**-10 / 448  # half of the smallest step, of the row's largest magnitude


def test_int8_is_within_half_a_step_of_the_largest():
    rows = jax.random.normal(jax.random.key(0), (50, 4, 64))
    values, scales = quantize(rows, np.dtype("int8"))
    assert values.dtype == jnp.int8 and scales.shape == (50, 4)
    largest = np.abs(rows).max(axis=-1, keepdims=True)
    error = np.abs(dequantize(values, scales) - rows)
    assert (error <= largest * INT8_ERROR * 1.0001).all()
    assert np.abs(np.asarray(values, np.int32)).max(axis=-1).min() == 127


def test_fp8_is_within_half_a_step_of_each_number():
    rows = jax.random.normal(jax.random.key(0), (50, 4, 64))
    values, scales = quantize(rows, np.dtype(jnp.float8_e4m3fn))
    largest = np.abs(rows).max(axis=-1, keepdims=True)
    error = np.abs(dequantize(values, scales) - rows)
    assert (error <= np.abs(rows) * FP8_ERROR * 1.0001 + largest * FP8_SMALLEST).all()


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
def test_extremes(dtype):
    rows = jnp.asarray([[0, 0], [1e30, -1e30], [1e-30, 5e-31], [3, 0]], jnp.float32)
    values, scales = quantize(rows, np.dtype(dtype))
    assert np.isfinite(np.asarray(values, np.float32)).all()
    assert scales[0] == 0
    np.testing.assert_allclose(dequantize(values, scales), rows, rtol=0.07)


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
def test_a_pool_of_rows(platform, dtype):
    layout = kv_layout(2, 24, dtype, platform)
    rows = jax.random.normal(jax.random.key(0), (2, 3, 5, 4, 24))
    cache = KVBlocks.of_rows(layout, rows)
    expected = dequantize(*quantize(rows, layout.dtype))
    np.testing.assert_array_equal(cache.rows(), expected)
    tile = cache.read(jnp.int32(1), jnp.asarray([2, 0]))
    k = dequantize(tile.k, tile.k_scales)
    np.testing.assert_array_equal(k, expected[1, jnp.asarray([2, 0])][..., 0::2, :])
    v = dequantize(tile.v, tile.v_scales)
    np.testing.assert_array_equal(v, expected[1, jnp.asarray([2, 0])][..., 1::2, :])

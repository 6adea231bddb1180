"""Accuracy of what the CPU kernel computes by itself."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("numba")

import numba

from pallas_kernels.paged_attention.cpu.vectors import (
    FP8_SHIFT,
    cap_logits,
    convert_row,
    exponentials,
)


@numba.njit
def exp_row(x):
    return exponentials(x, 0, len(x) // 16, np.float32(0))


@numba.njit
def cap_row(x, cap):
    cap_logits(x, 0, len(x) // 16, cap)


@numba.njit
def convert(x, factor, out):
    convert_row(x, 0, len(x), factor, out, 0)


def test_exponentials():
    x = np.linspace(-87, 0, 1 << 16).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    total = exp_row(x)
    assert np.abs(x / exact - 1).max() < 1.5e-7
    assert math.isclose(total, exact.sum(), rel_tol=1e-5)
    edges = np.full(16, -np.inf, np.float32)
    edges[:3] = -90, 0, np.nan
    exp_row(edges)
    np.testing.assert_array_equal(edges[[0, 1, 3]], [0, 1, 0])
    assert np.isnan(edges[2])


def test_capped_logits():
    x = np.linspace(-90, 90, 1 << 16).astype(np.float32)
    exact = 7 * np.tanh(x.astype(np.float64) / 7)
    cap_row(x, np.float32(7))
    np.testing.assert_allclose(x, exact, rtol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "bits", "factor"),
    [
        (jnp.float8_e4m3fn, np.uint8, FP8_SHIFT),
        (np.int8, np.int8, 1.0),
        (jnp.bfloat16, np.uint16, 1.0),
    ],
)
def test_every_number_of_a_pool_is_read(dtype, bits, factor):
    """Subnormal ones too: XLA's threads take them for 0 in float32 arithmetic."""
    stored = np.arange(1 << 8 * np.dtype(bits).itemsize, dtype=np.uint32).astype(bits)
    stored = stored[:-5]  # no whole number of vectors
    exact = stored.view(dtype).astype(np.float32)
    out = np.empty(len(stored), np.float32)
    convert(stored, np.float32(factor), out)
    finite = np.isfinite(exact)
    np.testing.assert_array_equal(out[finite], exact[finite])

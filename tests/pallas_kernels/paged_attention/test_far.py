"""Positions that 16 bits cannot hold, and a pool of more numbers than 31 bits can count."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.kv_blocks import KVBlocks
from pallas_kernels.layout import kv_layout
from pallas_kernels.paged_attention import paged_attention
from pallas_kernels.paged_attention.cases import Case, make_inputs
from pallas_kernels.paged_attention.gpu_triton import (
    paged_attention_gpu_triton,
    ragged_paged_attention_gpu_triton,
)
from pallas_kernels.paged_attention.tpu import (
    paged_attention_tpu,
    ragged_paged_attention_tpu,
)
from pallas_kernels.write_kv import write_kv
from tests.pallas_kernels.paged_attention.running import TOLERANCE, attend

# A window keeps the work small; the far positions are real.
FAR = dict(num_heads=2, kv_heads=1, head_dim=16, block_size=256, window=40)
LENGTHS = (2**15 + 300, 2**16 + 3)
DECODE = Case(name="far", context_lens=LENGTHS, **FAR)
RAGGED = Case(name="far_ragged", context_lens=LENGTHS, query_lens=(3, 2), **FAR)

INTERPRETED = {
    "tpu": (
        (paged_attention_tpu, ragged_paged_attention_tpu),
        dict(interpret=pltpu.InterpretParams()),
    ),
    "gpu_triton": (
        (paged_attention_gpu_triton, ragged_paged_attention_gpu_triton),
        dict(interpret=True, tiling=None, device_kind=None),
    ),
}


@pytest.mark.parametrize("case", [DECODE, RAGGED], ids=lambda case: case.name)
@pytest.mark.parametrize("implementation", ["xla", "cpu", *INTERPRETED])
def test_positions_past_16_bits(case, implementation):
    wanted = attend(case, make_inputs(case, platform="cpu"), "reference")
    if implementation in INTERPRETED:
        ops, options = INTERPRETED[implementation]
        platform = implementation.split("_")[0]
        run = functools.partial(ops[case is RAGGED], **case.options(), **options)
        out, lse = jax.jit(run)(*make_inputs(case, platform=platform).arguments())
    else:
        if implementation == "cpu":
            pytest.importorskip("numba", reason="needs the extra cpu")
        out, lse = attend(case, make_inputs(case, platform="cpu"), implementation)
    for got, want in zip((out, lse), wanted, strict=True):
        np.testing.assert_allclose(got, want, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("implementation", ["xla", "cpu"])
def test_offsets_past_31_bits(implementation):
    """The pool's last block, 2 GB behind its first, is written and read."""
    if implementation == "cpu":
        pytest.importorskip("numba", reason="needs the extra cpu")
    block_size, head_dim = 64, 256
    layout = kv_layout(1, head_dim, "int8", "cpu")
    num_blocks = 2**31 // (block_size * 2 * head_dim) + 3
    cache = KVBlocks(
        kv=jnp.zeros((1, num_blocks, block_size, 2, head_dim), jnp.int8),
        scales=jnp.zeros((1, num_blocks, block_size, 2)),
        layout=layout,
    )
    assert cache.kv.size > 2**31 and num_blocks * block_size < 2**31
    last = num_blocks - 1
    rows = jax.random.normal(jax.random.key(0), (5, 2, head_dim))
    slots = last * block_size + jnp.arange(5, dtype=jnp.int32)
    q = jax.random.normal(jax.random.key(1), (1, 2, head_dim))

    @functools.partial(jax.jit, donate_argnums=0)
    def step(cache, table):
        cache = write_kv(cache, rows, 0, slots, implementation=implementation)
        lens = jnp.asarray([5], jnp.int32)
        options = dict(scale=0.1, implementation=implementation)
        return cache, paged_attention(q, cache, 0, table, lens, **options)

    _, out = step(cache, jnp.asarray([[last]], jnp.int32))
    small = KVBlocks.of_rows(layout, rows[None, None])
    wanted = paged_attention(
        q,
        small,
        0,
        jnp.zeros((1, 1), jnp.int32),
        jnp.asarray([5], jnp.int32),
        scale=0.1,
        implementation="reference",
    )
    np.testing.assert_allclose(out, wanted, atol=TOLERANCE, rtol=TOLERANCE)
    assert np.abs(out).max() > 0.1

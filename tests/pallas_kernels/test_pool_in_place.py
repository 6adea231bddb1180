"""No copy of the pool in a compiled step: write and attend in a scan over layers.

Nothing is run; the pool is larger than what XLA would copy without showing it.
"""

import functools
import re

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.kv_blocks import make_cache
from pallas_kernels.layout import kv_layout
from pallas_kernels.paged_attention import paged_attention, ragged_paged_attention
from pallas_kernels.write_kv import write_kv

NUM_LAYERS, BLOCK_SIZE, HEADS, KV_HEADS, HEAD_DIM = 8, 16, 4, 2, 32
NUM_SEQS, BLOCKS_PER_SEQ, NUM_TOKENS = 32, 64, 256
POOL_BYTES = 256 * 2**20


def _step(cache, q, new_kv, slots, tables, context_lens, query_starts, num_seqs, *, ragged):
    """Eight layers that each store and attend; the pool is the scan's carry."""

    def layer_step(carry, layer):
        q, cache = carry
        cache = write_kv(cache, new_kv, layer, slots, implementation="xla")
        settings = dict(scale=1.0, implementation="xla")
        arguments = (q, cache, layer, tables, context_lens)
        if ragged:
            out = ragged_paged_attention(*arguments, query_starts, num_seqs, **settings)
        else:
            out = paged_attention(*arguments, **settings)
        return (q + out, cache), None

    layers = jnp.arange(cache.num_layers, dtype=jnp.int32)
    (q, cache), _ = jax.lax.scan(layer_step, (q, cache), layers)
    return q, cache


@functools.cache
def compiled_step(dtype: str, ragged: bool, multiple: int):
    """The compiled step and its pool, of `multiple` times `POOL_BYTES`."""
    layout = kv_layout(KV_HEADS, HEAD_DIM, dtype, "cpu")
    block_bytes = NUM_LAYERS * layout.bytes_per_block(BLOCK_SIZE)
    cache = jax.eval_shape(
        lambda: make_cache(
            layout,
            num_layers=NUM_LAYERS,
            num_blocks=multiple * POOL_BYTES // block_bytes,
            block_size=BLOCK_SIZE,
        )
    )
    num_tokens = NUM_TOKENS if ragged else NUM_SEQS

    def i32(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.int32)

    step = jax.jit(functools.partial(_step, ragged=ragged), donate_argnums=0)
    compiled = step.lower(
        cache,
        jax.ShapeDtypeStruct((num_tokens, HEADS, HEAD_DIM), jnp.float32),
        jax.ShapeDtypeStruct((num_tokens, 2 * KV_HEADS, HEAD_DIM), jnp.float32),
        i32(num_tokens),
        i32(NUM_SEQS, BLOCKS_PER_SEQ),
        i32(NUM_SEQS),
        i32(NUM_SEQS + 1),
        i32(1),
    ).compile()
    return compiled, cache.kv


@pytest.mark.parametrize("ragged", [False, True], ids=["decode", "ragged"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_pool_is_updated_in_place(dtype, ragged):
    sizes = [compiled_step(dtype, ragged, multiple) for multiple in (1, 4)]
    memory = [compiled.memory_analysis() for compiled, _ in sizes]
    for analysis, (_, kv) in zip(memory, sizes, strict=True):
        pool_bytes = kv.size * kv.dtype.itemsize
        assert analysis.alias_size_in_bytes == pool_bytes
        assert analysis.temp_size_in_bytes < 0.05 * POOL_BYTES
    assert memory[0].temp_size_in_bytes == memory[1].temp_size_in_bytes


@pytest.mark.parametrize("ragged", [False, True], ids=["decode", "ragged"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nothing_converts_the_pool(dtype, ragged):
    """A conversion that is fused into a write needs no memory, and yet reads it all."""
    compiled, kv = compiled_step(dtype, ragged, 1)
    shape = re.escape(",".join(map(str, kv.shape)))
    makers = re.findall(rf"= \w+\[{shape}\]\S* ([\w-]+)\(", compiled.as_text())
    assert "parameter" in makers  # else the pattern found nothing
    harmless = {"parameter", "get-tuple-element", "scatter", "while", "fusion", "call"}
    assert set(makers) <= harmless | {"dynamic-update-slice", "bitcast", "conditional"}

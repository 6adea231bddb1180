"""The size and the shape of the pools."""

import jax
import pytest

from paxkv.cache import plan_cache
from paxkv.config import CacheConfig
from tests.tiny_model import tiny_decoder

MODEL = tiny_decoder().config
BYTES_PER_TOKEN = 2 * 2 * 2 * 8 * 4  # layers, K and V, kv heads, head size, float32


def plan(free_bytes: int = 2**30, **cache):
    return plan_cache(
        MODEL,
        CacheConfig(block_size=16, **cache),
        max_num_seqs=4,
        max_context=128,
        max_new_tokens=64,
        platform="cpu",
        free_bytes=free_bytes,
    )


def test_a_fixed_pool_has_as_many_bytes_as_its_arrays():
    fixed = plan(num_blocks=10)
    assert fixed.bytes_per_token == BYTES_PER_TOKEN
    (blocks,) = jax.eval_shape(fixed.allocate)
    assert blocks.kv.size * blocks.kv.dtype.itemsize == fixed.nbytes
    assert fixed.nbytes == 10 * 16 * BYTES_PER_TOKEN


def test_a_pool_takes_its_share_of_the_memory():
    sized = plan(free_bytes=20 * 16 * BYTES_PER_TOKEN, memory_fraction=0.5)
    assert sized.num_blocks == 10


def test_a_pool_is_never_larger_than_the_sequences_can_fill():
    assert plan(memory_fraction=0.9).num_blocks == 4 * 128 // 16 + 1


def test_what_does_not_fit_is_refused_with_the_numbers():
    with pytest.raises(ValueError, match=r"num_blocks=1,000,000.*at most 32,768"):
        plan(num_blocks=10**6, free_bytes=32_768 * 16 * BYTES_PER_TOKEN)
    with pytest.raises(ValueError, match="holds 1 blocks"):
        plan(free_bytes=2 * 16 * BYTES_PER_TOKEN, memory_fraction=0.9)

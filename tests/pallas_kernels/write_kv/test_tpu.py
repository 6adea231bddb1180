"""The TPU write in jax's simulation of a TPU's memories, with its detector of races."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.kv_blocks import KVBlocks, make_cache
from pallas_kernels.layout import kv_layout
from pallas_kernels.write_kv import tpu, write_kv
from pallas_kernels.write_kv.reference import write_kv_reference
from pallas_kernels.write_kv.tpu import write_kv_tpu
from tests.pallas_kernels.move_blocks.moving import assert_same_blocks

NUM_LAYERS, NUM_BLOCKS, LAYER = 2, 5, 1
MLA = dict(kv_heads=1, head_dim=40, value_dim=24)


def poisoned_pool(dtype, block_size, *, kv_heads, head_dim, value_dim=None) -> KVBlocks:
    """Nothing that a write leaves alone may be touched, so NaN stands there, or -1."""
    layout = kv_layout(kv_heads, head_dim, dtype, "tpu", value_dim)
    cache = make_cache(
        layout, num_layers=NUM_LAYERS, num_blocks=NUM_BLOCKS, block_size=block_size
    )
    poison = jnp.nan if jnp.issubdtype(layout.dtype, jnp.floating) else -1
    return jax.tree.map(
        lambda x: jnp.full_like(x, poison if x is cache.kv else jnp.nan), cache
    )


def without_padding(cache: KVBlocks) -> KVBlocks:
    """Numbers beyond a block's scales are nobody's."""
    if cache.scales is None:
        return cache
    scales = cache.layout.unpack_scales(cache.scales, cache.block_size)
    return dataclasses.replace(cache, scales=scales)


def check(cache, slots, capfd) -> None:
    slots = jnp.asarray(slots, jnp.int32)
    shape = (len(slots), cache.layout.num_rows, cache.layout.head_dim)
    new_kv = jax.random.normal(jax.random.key(2), shape, jnp.bfloat16)
    wanted = jax.jit(write_kv_reference)(cache, new_kv, jnp.int32(LAYER), slots)
    interpret = pltpu.InterpretParams(detect_races=True)
    write = jax.jit(write_kv_tpu, static_argnames="interpret")
    actual = write(cache, new_kv, jnp.int32(LAYER), slots, interpret=interpret)
    assert_same_blocks(without_padding(actual), without_padding(wanted))
    assert "RACE" not in capfd.readouterr().out  # jax 0.10 prints where 0.12 raises


@pytest.mark.parametrize(
    ("dtype", "kv_heads", "head_dim"),
    [("float32", 1, 24), ("bfloat16", 3, 64), ("int8", 3, 40)],
)
def test_rows_land_in_their_slots(dtype, kv_heads, head_dim, capfd, monkeypatch):
    """More tokens than copies in flight; both ends of the pool, pads in between.

    With 6 scales a token, those of some tokens lie in two rows of their block's.
    """
    monkeypatch.setattr(tpu, "COPIES_IN_FLIGHT", 3)
    cache = poisoned_pool(dtype, 24, kv_heads=kv_heads, head_dim=head_dim)
    check(cache, [119, 45, 24, 0, 40, 41, 0, 46, 69, 0], capfd)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_latent_rows_share_tiles(dtype, capfd, monkeypatch):
    """A full tile, parts of some, the same tile again later, more tiles than buffers."""
    monkeypatch.setattr(tpu, "TILES_IN_FLIGHT", 4)
    slots = [*range(32, 40), 17, 0, 79, 16, 41, 0, 50, 56, 64, 42, 55, 23]
    check(poisoned_pool(dtype, 16, **MLA), slots, capfd)


def test_latent_blocks_smaller_than_a_tile(capfd):
    check(poisoned_pool("bfloat16", 2, **MLA), [9, 2, 0, 6, 3], capfd)


def test_pads_alone_write_nothing(capfd):
    check(poisoned_pool("float32", 8, **MLA), [0, 0], capfd)


def test_no_tokens():
    cache = poisoned_pool("float32", 3, kv_heads=1, head_dim=24)
    nothing = write_kv(
        cache,
        jnp.zeros((0, 2, 24)),
        0,
        jnp.zeros(0, jnp.int32),
        implementation="tpu",
    )
    assert nothing is cache


def test_unsorted_tokens_would_be_noticed(capfd, monkeypatch):
    """A tile that is read again before it is written: so the tests above can fail."""
    monkeypatch.setattr(tpu.jnp, "argsort", lambda x: jnp.arange(len(x)))
    try:
        check(poisoned_pool("bfloat16", 16, **MLA), [17, 40, 18], capfd)
    except (AssertionError, jax.errors.JaxRuntimeError):
        return
    pytest.fail("the tile of slots 17 and 18 lost one of them, unnoticed")

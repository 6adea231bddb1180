"""The TPU moves in jax's simulation of a TPU's memories, with its detector of races."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.move_blocks import copy_blocks, gather_blocks, scatter_blocks, tpu
from pallas_kernels.move_blocks.tpu import (
    copy_blocks_tpu,
    gather_blocks_tpu,
    scatter_blocks_tpu,
)
from tests.pallas_kernels.move_blocks.moving import (
    DST,
    SRC,
    assert_same_blocks,
    copied,
    pool,
    raw,
)

LATENT = dict(kv_heads=1, head_dim=40, value_dim=24, block_size=8)


@pytest.fixture(autouse=True)
def fewer_copies_in_flight_than_blocks(monkeypatch):
    monkeypatch.setattr(tpu, "COPIES_IN_FLIGHT", 2)


def run(op, *arguments):
    return jax.jit(op, static_argnames="interpret")(
        *arguments, interpret=pltpu.InterpretParams(detect_races=True)
    )


@pytest.mark.parametrize(("dtype", "heads"), [("bfloat16", LATENT), ("int8", {})])
def test_copy(dtype, heads, capfd):
    cache = pool(dtype, "tpu", **heads)
    actual = run(copy_blocks_tpu, cache, jnp.asarray(SRC), jnp.asarray(DST))
    assert_same_blocks(actual, copied(cache))
    assert "RACE" not in capfd.readouterr().out  # jax 0.10 prints where 0.12 raises


@pytest.mark.parametrize(
    ("dtype", "heads"),
    [("bfloat16", dict(kv_heads=3, head_dim=64)), ("float8_e4m3fn", LATENT)],
)
def test_swap_out_and_in(dtype, heads, capfd):
    """As in the other implementations' test; two entries are pads."""
    cache = pool(dtype, "tpu", **heads)
    src, dst = jnp.array([8, 0, 1, 5, 0]), jnp.array([2, 0, 7, 3, 0])
    moved = run(gather_blocks_tpu, cache, src)
    for part, whole in zip(jax.tree.leaves(moved), jax.tree.leaves(cache), strict=True):
        np.testing.assert_array_equal(raw(part), raw(whole[:, src]))
    back = run(scatter_blocks_tpu, cache, dst, moved)
    wanted = jax.tree.map(lambda x: x.at[:, dst].set(x[:, src]), cache)
    assert_same_blocks(back, wanted)
    assert "RACE" not in capfd.readouterr().out


def test_nothing_to_move():
    cache = pool("int8", "tpu")
    nothing = jnp.zeros(0, jnp.int32)
    by = dict(implementation="tpu")
    assert_same_blocks(copy_blocks(cache, nothing, nothing, **by), cache)
    moved = gather_blocks(cache, nothing, **by)
    assert moved.num_blocks == 0
    assert_same_blocks(scatter_blocks(cache, nothing, moved, **by), cache)


def test_the_detector_sees_races(capfd):
    """A block that is both written and read, which callers must not pass."""
    cache = pool("float32", "tpu")
    src, dst = jnp.array([1, 4]), jnp.array([4, 5])
    try:
        jax.block_until_ready(run(copy_blocks_tpu, cache, src, dst).kv)
        found = capfd.readouterr().out
    except jax.errors.JaxRuntimeError as error:
        found = str(error)
    assert "RACE DETECTED" in found

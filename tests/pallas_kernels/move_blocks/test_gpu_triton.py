"""The Triton moves, interpreted, against the reference."""

import functools

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.move_blocks.gpu_triton import (
    copy_blocks_gpu_triton,
    gather_blocks_gpu_triton,
    scatter_blocks_gpu_triton,
)
from pallas_kernels.move_blocks.reference import (
    gather_blocks_reference,
    scatter_blocks_reference,
)
from tests.pallas_kernels.move_blocks.moving import (
    DST,
    SRC,
    assert_same_blocks,
    copied,
    pool,
    raw,
)

LATENT = dict(kv_heads=1, head_dim=40, value_dim=24)
LONG = dict(kv_heads=3, head_dim=80, block_size=17)  # two pieces, neither full


def run(op, *arguments):
    return jax.jit(functools.partial(op, interpret=True))(*arguments)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("bfloat16", LATENT), ("int8", {}), ("float8_e4m3fn", {}), ("float32", LONG)],
    ids=["latent", "int8", "fp8", "long"],
)
def test_moves(dtype, shape):
    cache = pool(dtype, "gpu", **shape)
    src, dst = jnp.asarray(SRC), jnp.asarray(DST)
    assert_same_blocks(run(copy_blocks_gpu_triton, cache, src, dst), copied(cache))
    moved = run(gather_blocks_gpu_triton, cache, src)
    for a, b in zip(
        jax.tree.leaves(moved),
        jax.tree.leaves(gather_blocks_reference(cache, src)),
        strict=True,
    ):
        assert (raw(a) == raw(b)).all()
    wanted = scatter_blocks_reference(cache, dst, moved)
    assert_same_blocks(run(scatter_blocks_gpu_triton, cache, dst, moved), wanted)


def test_nothing_to_move():
    cache, none = pool("float32", "gpu"), jnp.zeros(0, jnp.int32)
    assert_same_blocks(run(copy_blocks_gpu_triton, cache, none, none), cache)
    moved = run(gather_blocks_gpu_triton, cache, none)
    assert moved.num_blocks == 0
    assert_same_blocks(run(scatter_blocks_gpu_triton, cache, none, moved), cache)

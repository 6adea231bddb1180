"""The Mosaic GPU moves in jax's interpreter of it, which is slow: few small blocks."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.move_blocks import copy_blocks, gather_blocks, scatter_blocks
from pallas_kernels.move_blocks.gpu import (
    copy_blocks_gpu,
    gather_blocks_gpu,
    scatter_blocks_gpu,
)
from pallas_kernels.move_blocks.reference import (
    copy_blocks_reference,
    gather_blocks_reference,
    scatter_blocks_reference,
)
from tests.pallas_kernels.move_blocks.moving import assert_same_blocks, pool, raw

SRC, DST = (8, 1), (2, 7)  # both ends of the pool


@pytest.mark.skipif(
    not hasattr(plgpu, "InterpretGPUParams"),
    reason="the interpreter of jax 0.10.2 has no refs that are written in place",
)
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("float32", {}), ("int8", dict(kv_heads=1, head_dim=48, value_dim=32))],
    ids=["float32", "int8-latent"],
)
def test_moves(dtype, shape):
    cache = pool(dtype, "gpu", **shape)
    src, dst = jnp.asarray(SRC, jnp.int32), jnp.asarray(DST, jnp.int32)
    wanted = copy_blocks_reference(cache, src, dst)
    assert_same_blocks(copy_blocks_gpu(cache, src, dst, interpret=True), wanted)
    moved = gather_blocks_gpu(cache, src, interpret=True)
    for a, b in zip(
        jax.tree.leaves(moved),
        jax.tree.leaves(gather_blocks_reference(cache, src)),
        strict=True,
    ):
        assert (raw(a) == raw(b)).all()
    wanted = scatter_blocks_reference(cache, dst, moved)
    assert_same_blocks(scatter_blocks_gpu(cache, dst, moved, interpret=True), wanted)


def test_nothing_to_move():
    cache, none = pool("float32", "gpu"), jnp.zeros(0, jnp.int32)
    by = dict(implementation="gpu")
    assert copy_blocks(cache, none, none, **by) is cache
    moved = gather_blocks(cache, none, **by)
    assert moved.num_blocks == 0
    assert scatter_blocks(cache, none, moved, **by) is cache

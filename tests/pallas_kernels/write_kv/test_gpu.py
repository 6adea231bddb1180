"""The Mosaic GPU write in jax's interpreter of it, which is slow: few tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.gpu_moves import MAX_ROWS, move_rows, piece_shape
from pallas_kernels.kv_blocks import KVBlocks
from pallas_kernels.layout import kv_layout
from pallas_kernels.write_kv.gpu import write_kv_gpu
from pallas_kernels.write_kv.reference import write_kv_reference


def _pool(dtype, head_dim, value_dim=None):
    layout = kv_layout(1, head_dim, dtype, "gpu", value_dim)
    shape = (2, 4, 3, layout.num_rows, head_dim)
    return KVBlocks.of_rows(layout, jax.random.normal(jax.random.key(1), shape))


@pytest.mark.skipif(
    not hasattr(plgpu, "InterpretGPUParams"),
    reason="the interpreter of jax 0.10.2 has no refs that are written in place",
)
@pytest.mark.parametrize(
    ("dtype", "head_dim", "value_dim"),
    [("float32", 32, None), ("int8", 48, 32)],
    ids=["float32", "int8-latent"],
)
def test_is_the_reference(dtype, head_dim, value_dim):
    cache = _pool(dtype, head_dim, value_dim)
    rows = jax.random.normal(jax.random.key(2), (2, cache.layout.num_rows, head_dim))
    arguments = (cache, rows, jnp.int32(1), jnp.asarray([11, 4], jnp.int32))
    written = write_kv_gpu(*arguments, interpret=True)
    wanted = write_kv_reference(*arguments)
    for a, b, before in zip(*map(jax.tree.leaves, (written, wanted, cache)), strict=True):
        np.testing.assert_array_equal(a, b)
        assert (np.asarray(a) != np.asarray(before)).any()


def test_pieces_divide_rows_within_the_limits_of_tma():
    assert piece_shape(2048, 2) == (8, 256)  # Llama 3's token
    assert piece_shape(576, 2) == (3, 192)  # a latent
    assert piece_shape(16 * 2048, 2) == (64, 256)  # 32 KiB of a block of 64
    assert piece_shape(160, 1) == (1, 160)


def test_errors():
    with pytest.raises(ValueError, match=r"row of 20 numbers of 2 bytes .* 16 bytes"):
        write_kv_gpu(
            _pool("bfloat16", 10), jnp.zeros((1, 2, 10)), 0, jnp.zeros(1, jnp.int32)
        )


@pytest.mark.parametrize("large", ["source", "target"])
def test_rows_are_counted_in_int32(large):
    """Shapes only: nothing as large as the pool is made."""
    pools = {
        name: jax.ShapeDtypeStruct((MAX_ROWS if name == large else 2, 16), jnp.int8)
        for name in ("source", "target")
    }
    index = jax.ShapeDtypeStruct((2,), jnp.int32)

    def run(source, target, src, dst):
        return move_rows(source, src, target, dst, interpret=True)

    with pytest.raises(ValueError, match="pool of 2147483648 rows .* than 2147483648"):
        jax.eval_shape(run, pools["source"], pools["target"], index, index)

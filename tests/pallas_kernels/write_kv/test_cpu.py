"""`write_kv` by bytes equals the one of XLA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("numba")

from pallas_kernels.kv_blocks import KVBlocks, make_cache
from pallas_kernels.layout import kv_layout
from pallas_kernels.write_kv import write_kv

DTYPES = ("float32", "bfloat16", "int8", "float8_e4m3fn")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kv_heads", "value_dim"), [(3, None), (1, 16)])
@pytest.mark.parametrize("num_tokens", [0, 1, 17, 9000])
def test_it_is_that_of_xla(dtype, kv_heads, value_dim, num_tokens):
    """9,000 tokens are shared among threads."""
    layout = kv_layout(kv_heads, 24, dtype, "cpu", value_dim)
    num_blocks, size = 1900, 5
    rng = np.random.default_rng(0)
    shape = (3, num_blocks, size, layout.num_rows, 24)
    cache = KVBlocks.of_rows(layout, jnp.asarray(rng.standard_normal(shape, np.float32)))
    new_kv = rng.standard_normal((num_tokens, *shape[3:]), np.float32)
    slots = size + rng.permutation(size * (num_blocks - 1))[:num_tokens]
    if num_tokens > 1:
        slots[-2:] = 0  # padding
    write = jax.jit(write_kv, static_argnames="implementation")
    arguments = (cache, new_kv, jnp.int32(1), jnp.asarray(slots, jnp.int32))
    ours, theirs = (write(*arguments, implementation=name) for name in ("cpu", "xla"))
    assert ours.layout == layout
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        a, b = np.asarray(a).copy(), np.asarray(b).copy()
        a[1, 0, 0] = b[1, 0, 0]  # both padded tokens went there, in any order
        np.testing.assert_array_equal(a, b)


def test_a_donated_pool_is_written_in_place():
    layout = kv_layout(2, 64, "bfloat16", "cpu")
    cache = KVBlocks(kv=jnp.zeros((2, 9, 4, 4, 64), jnp.uint16), layout=layout)
    write = jax.jit(write_kv, static_argnames="implementation", donate_argnums=0)
    before = cache.kv.unsafe_buffer_pointer()
    new_kv, slots = jnp.ones((3, 4, 64)), jnp.asarray([4, 9, 35], jnp.int32)
    written = write(cache, new_kv, jnp.int32(1), slots, implementation="cpu")
    assert written.kv.unsafe_buffer_pointer() == before
    assert cache.kv.is_deleted()
    stored = np.asarray(written.rows(), np.float32)[1].reshape(36, 4, 64)
    np.testing.assert_array_equal(np.flatnonzero(stored.any(axis=(1, 2))), slots)


def test_rows_that_the_pool_lacks_are_left_out():
    cache = make_cache(
        kv_layout(1, 8, "float32", "cpu"), num_layers=2, num_blocks=3, block_size=2
    )
    rows = jnp.ones((3, 2, 8))
    slots = jnp.asarray([-3, 10**8, 5], jnp.int32)
    written = write_kv(cache, rows, 1, slots, implementation="cpu")
    assert np.asarray(written.kv).sum() == 16
    assert np.asarray(written.kv[1, 2, 1]).all()


@pytest.mark.parametrize("layer", [-1, 2, 10**6])
def test_a_layer_that_the_pool_lacks_is_left_out(layer):
    """A traced one, which no check sees before."""
    cache = make_cache(
        kv_layout(1, 8, "float32", "cpu"), num_layers=2, num_blocks=3, block_size=2
    )
    slots = jnp.asarray([2], jnp.int32)
    written = write_kv(
        cache, jnp.ones((1, 2, 8)), jnp.int32(layer), slots, implementation="cpu"
    )
    assert not np.asarray(written.kv).any()

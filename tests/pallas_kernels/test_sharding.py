"""Tensor parallelism: two devices that each hold the rows of half the kv heads.

Rows interleave K and V, so cutting the row axis keeps each K with its V. The devices
are virtual, hence a process of its own.
"""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pallas_kernels.kv_blocks import KVBlocks
from pallas_kernels.layout import kv_layout
from pallas_kernels.paged_attention import ragged_paged_attention
from pallas_kernels.paged_attention.cases import Case, make_inputs
from pallas_kernels.write_kv import write_kv

NUM_DEVICES = 2
CASE = Case(
    name="sharded",
    num_heads=8,
    kv_heads=4,
    head_dim=16,
    block_size=4,
    context_lens=(9, 30, 17),
    query_lens=(9, 1, 4),
    soft_cap=5.0,
)


def _step(q, cache, new_kv, slots, layer, *rest, implementation):
    cache = write_kv(cache, new_kv, layer, slots, implementation=implementation)
    out = ragged_paged_attention(
        q, cache, layer, *rest, scale=0.3, soft_cap=5.0, implementation=implementation
    )
    return out, cache


def check(dtype: str, implementation: str) -> None:
    """A step on two devices equals the same step on one."""
    inputs = make_inputs(CASE, platform="cpu", dtype=dtype)
    num_tokens, rows = inputs.q.shape[0], 2 * CASE.kv_heads
    new_kv = jax.random.normal(jax.random.key(0), (num_tokens, rows, CASE.head_dim))
    slots = inputs.block_tables[1, 2] * CASE.block_size + jnp.arange(4, dtype=jnp.int32)
    slots = jnp.zeros(num_tokens, jnp.int32).at[:4].set(slots)
    arrays = (new_kv, slots, inputs.layer, *inputs.arguments()[3:])

    def on_one(q, cache, *arrays):
        return _step(q, cache, *arrays, implementation=implementation)

    wanted, wanted_cache = jax.jit(on_one)(inputs.q, inputs.cache, *arrays)

    per_shard = kv_layout(CASE.kv_heads // NUM_DEVICES, CASE.head_dim, dtype, "cpu")
    by_rows = P(None, None, None, "tensor", None)
    by_scales = P(None, None, None, "tensor")
    mesh = Mesh(np.asarray(jax.devices()), ("tensor",))

    def on_each(q, kv, scales, new_kv, *rest):
        cache = KVBlocks(kv=kv, scales=scales, layout=per_shard)
        out, cache = _step(q, cache, new_kv, *rest, implementation=implementation)
        return out, cache.kv, cache.scales

    heads = P(None, "tensor", None)
    sharded = jax.shard_map(
        on_each,
        mesh=mesh,
        in_specs=(heads, by_rows, by_scales, heads, *(P() for _ in arrays[1:])),
        out_specs=(heads, by_rows, by_scales),
        check_vma=False,
    )
    kv = jax.device_put(inputs.cache.kv, NamedSharding(mesh, by_rows))
    out, kv, scales = jax.jit(sharded)(inputs.q, kv, inputs.cache.scales, *arrays)
    assert kv.sharding.spec[3] == "tensor"
    np.testing.assert_allclose(out, wanted, atol=2e-5, rtol=2e-5)
    np.testing.assert_array_equal(kv[:, 1:], wanted_cache.kv[:, 1:])
    if scales is not None:
        np.testing.assert_array_equal(scales[:, 1:], wanted_cache.scales[:, 1:])


@pytest.mark.parametrize("implementation", ["xla", "cpu"])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_two_devices_equal_one(implementation, dtype):
    if implementation == "cpu":
        pytest.importorskip("numba", reason="needs the extra cpu")
    flag = f"--xla_force_host_platform_device_count={NUM_DEVICES}"
    subprocess.run(
        [sys.executable, "-m", __spec__.name, dtype, implementation],
        env=os.environ | dict(XLA_FLAGS=flag, JAX_PLATFORMS="cpu"),
        check=True,
        timeout=300,
    )


if __name__ == "__main__":
    assert len(jax.devices()) == NUM_DEVICES
    check(*sys.argv[1:])

"""The compiled programs that move blocks: few, and each leaves the pool in place."""

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.kv_blocks import KVBlocks
from pallas_kernels.layout import kv_layout
from paxkv import transfers as transfers_module
from paxkv.moves import SwapIn, SwapOut
from paxkv.tiers.host_store import HostStore
from paxkv.transfers import Transfers, copy_in_place, poison_in_place, scatter_in_place


def test_programs_are_as_many_as_paddings(monkeypatch):
    """Batches of 1 to 40 blocks need lists of 8, 16 and 32; a second round none."""
    monkeypatch.setattr(transfers_module, "MAX_BLOCKS_PER_CALL", 32)
    layout = kv_layout(1, 8, "float32", "cpu")
    cache = (KVBlocks.of_rows(layout, jnp.ones((1, 50, 2, 2, 8))),)
    store = HostStore(50, (layout.bytes_per_block(2),))
    transfers = Transfers("xla", store, None)
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, _, **__: compiled.append(name) if "backend_compile" in name else None
    )
    try:
        for _ in range(2):
            compiled.clear()
            for count in (1, 7, 8, 9, 31, 32, 33, 40):
                out = [SwapOut(group=0, block=i + 1, host_slot=i) for i in range(count)]
                back = [SwapIn(group=0, block=i + 1, host_slot=i) for i in range(count)]
                cache = transfers.run(cache, [*out, *back])
    finally:
        jax.monitoring.clear_event_listeners()
    assert transfers.num_programs == 2 * 3
    assert not compiled
    assert transfers.counts.device_calls == 2 * 2 * (6 + 2 * 2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("implementation", ["xla", "cpu"])
@pytest.mark.parametrize("op", ["copy", "gather", "scatter", "poison"])
def test_pools_stay_in_place(implementation, dtype, op):
    """Changed pools are the donated ones, and nothing as large as one is made."""
    if implementation == "cpu":
        pytest.importorskip("numba")
    layout = kv_layout(2, 64, dtype, "cpu")
    cache = jax.eval_shape(lambda: KVBlocks.of_rows(layout, jnp.ones((4, 4096, 16, 4, 64))))
    pool_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(cache))
    blocks = jax.ShapeDtypeStruct((8,), jnp.int32)
    moved = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((4, 8, *x.shape[2:]), x.dtype), cache
    )
    lowered = {
        "copy": lambda by: copy_in_place.lower(cache, blocks, blocks, **by),
        "gather": lambda by: transfers_module.gather.lower(cache, blocks, **by),
        "scatter": lambda by: scatter_in_place.lower(cache, blocks, moved, **by),
        "poison": lambda by: poison_in_place.lower(cache, blocks),
    }[op](dict(implementation=implementation))
    memory = lowered.compile().memory_analysis()
    assert memory.alias_size_in_bytes == (0 if op == "gather" else pool_bytes)
    made = memory.output_size_in_bytes - memory.alias_size_in_bytes
    assert made + memory.temp_size_in_bytes < 0.01 * pool_bytes

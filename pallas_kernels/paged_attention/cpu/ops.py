"""Both attention ops as a CPU kernel that walks the block tables in place.

See `kernel`. Everything here is traced: it packs the arguments of one foreign call.
"""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32

from pallas_kernels.kv_blocks import KVBlocks
from pallas_kernels.numba_ffi import num_threads, put_in_table, register, source_version
from pallas_kernels.paged_attention.cpu.kernel import (
    NUM_INTEGERS,
    make_handler,
    make_worker,
)

VERSION = source_version(sorted(pathlib.Path(__file__).parent.glob("*.py")))
# Their places in the table of functions, also in programs that jax keeps on disk.
WORKERS = ("float32", "uint16", "int8", "uint8")


def ragged_paged_attention_cpu(
    q: Float[Array, "T H D"],
    cache: KVBlocks,
    layer: Int32[Array, ""] | int,
    block_tables: Int32[Array, "S P"],
    context_lens: Int32[Array, "S"],
    query_starts: Int32[Array, "S1"],
    num_seqs: Int32[Array, "1"],
    *,
    scale: float,
    window: Int32[Array, ""] | int | None,
    soft_cap: float | None,
    sinks: Float[Array, "H"] | None,
    chunk_size: int | None = None,
    tiling: Any = None,
    device_kind: str | None = None,
) -> tuple[Float[Array, "T H Dv"], Float[Array, "T H"]]:
    """See `pallas_kernels.paged_attention.ragged_paged_attention`."""
    # the code is compiled for the machine that it runs on, and has no choice of tiles
    del tiling, device_kind
    layout = cache.layout
    worker = WORKERS.index(layout.storage_dtype.name)
    put_in_table(worker, make_worker, layout.storage_dtype.name, VERSION)
    num_tokens, num_heads, _ = q.shape
    integers = [
        layer,
        0 if window is None else window,
        chunk_size or 0,
        num_seqs[0],
        num_threads(),
        layout.kv_heads,
        sinks is not None,
        layout.is_quantized,
        layout.packing == "latent",
        layout.dtype == jnp.float8_e4m3fn,
        worker,
    ]
    assert len(integers) == NUM_INTEGERS
    call = jax.ffi.ffi_call(
        register("paged_attention", make_handler, VERSION),
        (
            jax.ShapeDtypeStruct((num_tokens, num_heads, layout.value_dim), jnp.float32),
            jax.ShapeDtypeStruct((num_tokens, num_heads), jnp.float32),
        ),
    )
    out, lse = call(
        q.astype(jnp.float32),
        cache.kv,
        np.zeros(1, np.float32) if cache.scales is None else cache.scales,
        block_tables,
        context_lens,
        query_starts,
        np.zeros(num_heads, np.float32) if sinks is None else sinks.astype(jnp.float32),
        jnp.stack([jnp.asarray(x, jnp.int32) for x in integers]),
        jnp.asarray([scale, soft_cap or 0.0], jnp.float32),
    )
    return out.astype(q.dtype), lse


def paged_attention_cpu(
    q: Float[Array, "S H D"],
    cache: KVBlocks,
    layer: Int32[Array, ""] | int,
    block_tables: Int32[Array, "S P"],
    context_lens: Int32[Array, "S"],
    **options: Any,
) -> tuple[Float[Array, "S H Dv"], Float[Array, "S H"]]:
    """See `pallas_kernels.paged_attention.paged_attention`: ragged runs of one query."""
    num_seqs = jnp.full(1, q.shape[0], jnp.int32)
    # NumPy's, to be a constant of the program and not a loop of its own
    starts = jnp.asarray(np.arange(q.shape[0] + 1, dtype=np.int32))
    return ragged_paged_attention_cpu(
        q, cache, layer, block_tables, context_lens, starts, num_seqs, **options
    )

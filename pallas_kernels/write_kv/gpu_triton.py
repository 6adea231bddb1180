"""`write_kv` in Pallas Triton: a program per token copies its rows to their slot.

Quantisation is left to XLA, which fuses it into the step before: the rounding is then the
same as everywhere, also of float8_e4m3fn, which Triton has on newer chips only.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float, Int32

from pallas_kernels.kv_blocks import KVBlocks
from pallas_kernels.triton_calls import next_power_of_two, scalar_argument, triton_call

MAX_COLUMNS = 2048  # copied at once
NUM_WARPS = 4


def write_kv_kernel(block_size: int, num_arrays: int, layer_ref, slots_ref, *refs):
    """`refs`: the rows of all tokens for each array, the pools, the same pools again."""
    token = pl.program_id(0)
    slot = slots_ref[token]
    block = lax.div(slot, jnp.int32(block_size))
    offset = slot - block * block_size
    for new_ref, pool_ref in zip(refs[:num_arrays], refs[-num_arrays:], strict=True):
        width = new_ref.shape[1]
        columns = min(MAX_COLUMNS, next_power_of_two(width))
        for start in range(0, width, columns):
            column = start + jnp.arange(columns, dtype=jnp.int32)
            mask = column < width
            rows = plgpu.load(new_ref.at[token, column], mask=mask)
            target = pool_ref.at[layer_ref[0], block, offset, column]
            plgpu.store(target, rows, mask=mask)


def write_kv_gpu_triton(
    cache: KVBlocks,
    new_kv: Float[Array, "T R D"],
    layer: Int32[Array, ""] | int,
    slots: Int32[Array, "T"],
    *,
    interpret: bool = False,
) -> KVBlocks:
    """See `pallas_kernels.write_kv.write_kv`."""
    num_tokens, size = len(slots), cache.block_size
    leaves, structure = jax.tree.flatten(cache)
    new = [x for x in cache.layout.encode(new_kv) if x is not None]
    # all that a token stores is one row; for XLA that is another name of the same array
    widths = [math.prod(x.shape[3:]) for x in leaves]
    pools = [x.reshape(*x.shape[:3], w) for x, w in zip(leaves, widths, strict=True)]
    arguments = [
        scalar_argument(layer),
        slots,
        *(x.reshape(num_tokens, w) for x, w in zip(new, widths, strict=True)),
        *pools,
    ]
    first_pool = len(arguments) - len(pools)
    written = triton_call(
        partial(write_kv_kernel, size, len(pools)),
        *arguments,
        grid=(num_tokens,),
        outputs=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in pools],
        aliases={first_pool + i: i for i in range(len(pools))},
        num_warps=NUM_WARPS,
        interpret=interpret,
    )
    leaves = [x.reshape(y.shape) for x, y in zip(written, leaves, strict=True)]
    return jax.tree.unflatten(structure, leaves)

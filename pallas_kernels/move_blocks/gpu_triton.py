"""The moves in Pallas Triton: a program copies a piece of one block of one layer."""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Int32, Shaped

from pallas_kernels.kv_blocks import KVBlocks
from pallas_kernels.triton_calls import next_power_of_two, triton_call

MAX_COLUMNS = 4096  # copied at once
NUM_WARPS = 4


def move_blocks_kernel(src_ref, dst_ref, from_ref, *refs):
    """Copies block src[i] of `from_ref` to block dst[i] of the last of `refs`."""
    to_ref = refs[-1]
    i, layer, piece = pl.program_id(0), pl.program_id(1), pl.program_id(2)
    width = from_ref.shape[2]
    columns = _columns(width)
    column = piece * columns + jnp.arange(columns, dtype=jnp.int32)
    mask = column < width
    numbers = plgpu.load(from_ref.at[layer, src_ref[i], column], mask=mask)
    plgpu.store(to_ref.at[layer, dst_ref[i], column], numbers, mask=mask)


def _columns(width: int) -> int:
    return min(MAX_COLUMNS, next_power_of_two(width))


def _move(
    src: Int32[Array, "n"],
    dst: Int32[Array, "n"],
    source: Shaped[Array, "L blocks *block"],
    pool: Shaped[Array, "L N *block"] | None,
    *,
    into_source: bool,
    interpret: bool,
) -> Shaped[Array, "L blocks_out *block"]:
    """Into `pool`, into `source` itself, or if neither into a new array of n blocks.

    A block is one row of numbers; for XLA that is another name of the same array.
    """
    num_layers, block = source.shape[0], source.shape[2:]
    width = math.prod(block)
    arguments = [src, dst, source.reshape(*source.shape[:2], width)]
    if pool is not None:
        arguments.append(pool.reshape(*pool.shape[:2], width))
    has_pool = into_source or pool is not None
    num_blocks = arguments[-1].shape[1] if has_pool else len(src)
    shape = (num_layers, num_blocks, width)
    moved = triton_call(
        move_blocks_kernel,
        *arguments,
        grid=(len(src), num_layers, pl.cdiv(width, _columns(width))),
        outputs=jax.ShapeDtypeStruct(shape, source.dtype),
        aliases={len(arguments) - 1: 0} if has_pool else None,
        num_warps=NUM_WARPS,
        interpret=interpret,
    )
    return moved.reshape(num_layers, num_blocks, *block)


def copy_blocks_gpu_triton(
    cache: KVBlocks,
    src: Int32[Array, "n"],
    dst: Int32[Array, "n"],
    *,
    interpret: bool = False,
) -> KVBlocks:
    """See `pallas_kernels.move_blocks.copy_blocks`."""
    move = partial(_move, src, dst, pool=None, into_source=True, interpret=interpret)
    return jax.tree.map(move, cache)


def gather_blocks_gpu_triton(
    cache: KVBlocks, blocks: Int32[Array, "n"], *, interpret: bool = False
) -> KVBlocks:
    """See `pallas_kernels.move_blocks.gather_blocks`."""
    index = jnp.arange(len(blocks), dtype=jnp.int32)
    move = partial(_move, blocks, index, pool=None, into_source=False, interpret=interpret)
    return jax.tree.map(move, cache)


def scatter_blocks_gpu_triton(
    cache: KVBlocks,
    blocks: Int32[Array, "n"],
    moved: KVBlocks,
    *,
    interpret: bool = False,
) -> KVBlocks:
    """See `pallas_kernels.move_blocks.scatter_blocks`."""
    index = jnp.arange(len(blocks), dtype=jnp.int32)
    move = partial(_move, index, blocks, into_source=False, interpret=interpret)
    return jax.tree.map(move, moved, cache)

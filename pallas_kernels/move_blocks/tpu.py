"""The moves for TPU: one DMA per block, of all layers at once, several in flight."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Int32, Shaped

from pallas_kernels.kv_blocks import KVBlocks

COPIES_IN_FLIGHT = 8


def copy_blocks_tpu(
    cache: KVBlocks,
    src: Int32[Array, "n"],
    dst: Int32[Array, "n"],
    *,
    interpret: Any = False,
) -> KVBlocks:
    """See `pallas_kernels.move_blocks.copy_blocks`. Leaves the null block as it is.

    Args:
      interpret: `pltpu.InterpretParams` to run without a TPU, in tests.
    """
    return jax.tree.map(lambda x: _copy(None, x, src, dst, interpret), cache)


def gather_blocks_tpu(
    cache: KVBlocks, blocks: Int32[Array, "n"], *, interpret: Any = False
) -> KVBlocks:
    """See `pallas_kernels.move_blocks.gather_blocks`."""
    own = jnp.arange(len(blocks), dtype=jnp.int32)

    def gather(x):
        shape = (x.shape[0], len(blocks), *x.shape[2:])
        return _copy(x, jax.ShapeDtypeStruct(shape, x.dtype), blocks, own, interpret)

    return jax.tree.map(gather, cache)


def scatter_blocks_tpu(
    cache: KVBlocks, blocks: Int32[Array, "n"], moved: KVBlocks, *, interpret: Any = False
) -> KVBlocks:
    """See `pallas_kernels.move_blocks.scatter_blocks`. Leaves the null block as it is."""
    own = jnp.arange(len(blocks), dtype=jnp.int32)
    return jax.tree.map(lambda x, y: _copy(y, x, own, blocks, interpret), cache, moved)


def _copy(
    source: Shaped[Array, "L M *block"] | None,
    target: Shaped[Array, "L N *block"] | jax.ShapeDtypeStruct,
    src: Int32[Array, "n"],
    dst: Int32[Array, "n"],
    interpret: Any,
) -> Shaped[Array, "L N *block"]:
    """Copies source[:, src[i]] to target[:, dst[i]].

    Args:
      source: None for `target` itself.
      target: changed in place, or the shape of a new array, every block of which is a dst.
    """
    is_new = isinstance(target, jax.ShapeDtypeStruct)
    arrays = [x for x in (source, None if is_new else target) if x is not None]
    in_flight = min(COPIES_IN_FLIGHT, len(src))
    return pl.pallas_call(
        partial(
            _copy_kernel,
            within=source is None,
            skips_null_block=not is_new,
            in_flight=in_flight,
        ),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(1,),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)] * len(arrays),
            out_specs=pl.BlockSpec(memory_space=pl.ANY),
            scratch_shapes=[pltpu.SemaphoreType.DMA((in_flight,))],
        ),
        out_shape=jax.ShapeDtypeStruct(target.shape, target.dtype),
        input_output_aliases={} if is_new else {1 + len(arrays): 0},
        interpret=interpret,
        name="move_blocks",
    )(src, dst, *arrays)


def _copy_kernel(src, dst, *refs, within, skips_null_block, in_flight):
    """Block i is on its way from step i to step i + in_flight."""
    *inputs, target, semaphores = refs
    # copies within a pool go through the output alone, the alias of the input
    source = target if within else inputs[0]
    num_copies = src.shape[0]

    def copy(i):
        return pltpu.make_async_copy(
            source.at[:, src[i]],
            target.at[:, dst[i]],
            semaphores.at[lax.rem(i, jnp.int32(in_flight))],
        )

    def is_copied(i):
        # pads would race with each other, and what lies in the null block is never used
        return dst[i] != 0 if skips_null_block else True

    @pl.loop(0, num_copies + in_flight)
    def _(i):
        done = lax.max(i - in_flight, 0)

        @pl.when((i >= in_flight) & is_copied(done))
        def _():
            copy(done).wait()

        begun = lax.min(i, num_copies - 1)

        @pl.when((i < num_copies) & is_copied(begun))
        def _():
            copy(begun).start()

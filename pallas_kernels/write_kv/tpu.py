"""`write_kv` for TPU: one DMA per token, in place.

A token's rows are whole tiles of memory, in every layout but the latent one, whose tokens
share tiles of 8 rows; so do the scales of a block. There a token is written by reading the
tile, changing the token's part and writing the tile back. Tokens are sorted by slot first,
so that each tile is read and written once and all tiles of a step can be in flight
together.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Float32, Int32, Shaped

from pallas_kernels.kv_blocks import KVBlocks
from pallas_kernels.layout import TPU_ROW_TILE

COPIES_IN_FLIGHT = 16
TILES_IN_FLIGHT = 16  # buffers; half of them are being read while the others are written


def write_kv_tpu(
    cache: KVBlocks,
    new_kv: Float[Array, "T R D"],
    layer: Int32[Array, ""] | int,
    slots: Int32[Array, "T"],
    *,
    interpret: Any = False,
) -> KVBlocks:
    """See `pallas_kernels.write_kv.write_kv`. Nothing is written to the null block.

    Args:
      interpret: `pltpu.InterpretParams` to run without a TPU, in tests.
    """
    layer = jnp.asarray(layer, jnp.int32)
    stored, new_scales = cache.layout.encode(new_kv)
    where = dict(block_size=cache.block_size, layer=layer, slots=slots)
    if cache.layout.packing == "latent":
        tile_tokens = min(TPU_ROW_TILE, cache.block_size)
        kv = _write_tiles(
            cache.kv, stored, tile_tokens=tile_tokens, interpret=interpret, **where
        )
    else:
        kv = _write_rows(cache.kv, stored, layer, slots, interpret)
    scales = cache.scales
    if scales is not None and new_scales is not None:  # or neither
        # XLA's scatter would do, but on v5p it lays all scales out anew on every step
        scales = _write_tiles(
            scales, new_scales, tile_tokens=cache.block_size, interpret=interpret, **where
        )
    return KVBlocks(kv=kv, scales=scales, layout=cache.layout)


def _write_rows(
    kv: Shaped[Array, "L N B Rp Dp"],
    new: Shaped[Array, "T Rp Dp"],
    layer: Int32[Array, ""],
    slots: Int32[Array, "T"],
    interpret: Any,
) -> Shaped[Array, "L N B Rp Dp"]:
    in_flight = min(COPIES_IN_FLIGHT, len(slots))
    return pl.pallas_call(
        partial(_rows_kernel, in_flight=in_flight),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(1,),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)] * 2,
            out_specs=pl.BlockSpec(memory_space=pl.ANY),
            scratch_shapes=[pltpu.SemaphoreType.DMA((in_flight,))],
        ),
        out_shape=jax.ShapeDtypeStruct(kv.shape, kv.dtype),
        input_output_aliases={3: 0},
        interpret=interpret,
        name="write_kv",
    )(layer.reshape(1), slots, new, kv)


def _divide(i, size: int):
    """Quotient and remainder; `//` and `%` would ask the device while it is traced."""
    return lax.div(i, jnp.int32(size)), lax.rem(i, jnp.int32(size))


def _rows_kernel(layer, slots, new, _, kv, semaphores, *, in_flight):
    """Token i is on its way from step i to step i + in_flight."""
    num_tokens, block_size = slots.shape[0], kv.shape[2]

    def copy(i):
        block, offset = _divide(slots[i], block_size)
        target = kv.at[layer[0], block, offset]
        _, own = _divide(i, in_flight)
        return pltpu.make_async_copy(new.at[i], target, semaphores.at[own])

    def is_written(i):
        return slots[i] >= block_size  # what lies in the null block is never used

    @pl.loop(0, num_tokens + in_flight)
    def _(i):
        done = lax.max(i - in_flight, 0)

        @pl.when((i >= in_flight) & is_written(done))
        def _():
            copy(done).wait()

        begun = lax.min(i, num_tokens - 1)

        @pl.when((i < num_tokens) & is_written(begun))
        def _():
            copy(begun).start()


def _write_tiles(
    pool: Shaped[Array, "L N rows lanes"],
    new: Shaped[Array, "T E"],
    *,
    block_size: int,
    tile_tokens: int,
    layer: Int32[Array, ""],
    slots: Int32[Array, "T"],
    interpret: Any,
) -> Shaped[Array, "L N rows lanes"]:
    """Writes the E numbers of each token, which lie one token after the other in a block.

    Args:
      tile_tokens: how many share what is read and written at once: those of a whole
        block, or as many as have a row each.
    """
    num_tokens, (block_rows, lanes) = len(slots), pool.shape[2:]
    tile_rows = block_rows if tile_tokens == block_size else tile_tokens
    order = jnp.argsort(slots)
    slots = slots[order]
    tiles = lax.div(slots, jnp.int32(tile_tokens))
    is_first = jnp.concatenate([jnp.array([True]), tiles[1:] != tiles[:-1]])
    (starts,) = jnp.nonzero(
        is_first & (slots >= block_size), size=num_tokens + 1, fill_value=num_tokens
    )
    num_tiles = (starts < num_tokens).sum(dtype=jnp.int32)
    rows = _at_their_lanes(new[order], _divide(slots, tile_tokens)[1], lanes)
    scratch_shapes = [
        pltpu.VMEM((TILES_IN_FLIGHT, tile_rows, lanes), pool.dtype),
        pltpu.VMEM((TILES_IN_FLIGHT, tile_tokens, *rows.shape[1:]), rows.dtype),
        pltpu.SemaphoreType.DMA((3, TILES_IN_FLIGHT)),
    ]
    return pl.pallas_call(
        partial(
            _tiles_kernel,
            block_size=block_size,
            tile_tokens=tile_tokens,
            entries=new.shape[1],
        ),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(1,),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)] * 2,
            out_specs=pl.BlockSpec(memory_space=pl.ANY),
            scratch_shapes=scratch_shapes,
        ),
        out_shape=jax.ShapeDtypeStruct(pool.shape, pool.dtype),
        input_output_aliases={5: 0},
        interpret=interpret,
        name="write_kv_tiles",
    )(
        layer.reshape(1),
        slots,
        starts.astype(jnp.int32),
        num_tiles.reshape(1),
        rows,
        pool,
    )


def _at_their_lanes(
    new: Shaped[Array, "T E"], places: Int32[Array, "T"], lanes: int
) -> Float32[Array, "T span 1 lanes"]:
    """The numbers where they belong in the row or rows of a tile that hold them.

    Four bytes each and a row axis of 1, so that a row can be copied and taken alone.
    """
    num_tokens, entries = new.shape
    new = new.astype(jnp.float32)
    span = 1 if lanes % entries == 0 else 1 + -(-(entries - 1) // lanes)
    if entries < span * lanes:
        _, first = _divide(places * entries, lanes)
        entry = jnp.arange(span * lanes, dtype=jnp.int32) - first[:, None]
        new = jnp.take_along_axis(new, jnp.clip(entry, 0, entries - 1), axis=1)
    return new.reshape(num_tokens, span, 1, lanes)


def _tiles_kernel(
    layer,
    slots,
    starts,
    num_tiles,
    rows,
    _,
    pool,
    tiles,
    fresh,
    semaphores,
    *,
    block_size,
    tile_tokens,
    entries,
):
    """Tile i takes tokens [starts[i], starts[i + 1]) of the sorted ones.

    Its copies: the tile in, the rows of its tokens in, the tile out.
    """
    _, tile_rows, lanes = tiles.shape
    ahead = TILES_IN_FLIGHT // 2  # tiles that are read before their turn

    def buffer(i):
        return _divide(i, TILES_IN_FLIGHT)[1]

    def tile_of(i):
        block, offset = _divide(slots[starts[i]], block_size)
        if tile_tokens == block_size:
            return pool.at[layer[0], block]
        first = offset - _divide(offset, tile_tokens)[1]
        return pool.at[layer[0], block, pl.ds(pl.multiple_of(first, tile_rows), tile_rows)]

    def read_tile(i):
        own = buffer(i)
        return pltpu.make_async_copy(tile_of(i), tiles.at[own], semaphores.at[0, own])

    def read_row(i, token):
        own = buffer(i)
        return pltpu.make_async_copy(
            rows.at[token], fresh.at[own, token - starts[i]], semaphores.at[1, own]
        )

    def write_tile(i):
        own = buffer(i)
        return pltpu.make_async_copy(tiles.at[own], tile_of(i), semaphores.at[2, own])

    def start_reads(i):
        read_tile(i).start()

        @pl.loop(starts[i], starts[i + 1])
        def _(token):
            read_row(i, token).start()

    def change(i):
        read_tile(i).wait()
        own = buffer(i)
        row = lax.broadcasted_iota(jnp.int32, (tile_rows, lanes), 0)
        entry = row * lanes + lax.broadcasted_iota(jnp.int32, (tile_rows, lanes), 1)

        # all of them: a wait tells how many bytes arrived, not whose
        @pl.loop(starts[i], starts[i + 1])
        def _(token):
            read_row(i, token).wait()

        def replace(token, tile):
            first = _divide(slots[token], tile_tokens)[1] * entries
            is_own = (entry >= first) & (entry < first + entries)
            for k in range(fresh.shape[2]):
                is_here = is_own & (row == _divide(first, lanes)[0] + k)
                tile = jnp.where(is_here, fresh[own, token - starts[i], k], tile)
            return tile

        tile = tiles[own].astype(jnp.float32)
        tile = lax.fori_loop(starts[i], starts[i + 1], replace, tile)
        tiles[own] = tile.astype(tiles.dtype)

    @pl.loop(0, lax.min(num_tiles[0], ahead))
    def _(i):
        start_reads(i)

    @pl.loop(0, num_tiles[0])
    def _(i):
        later = i + ahead

        @pl.when(later < num_tiles[0])
        def _():
            @pl.when(later >= TILES_IN_FLIGHT)
            def _():
                write_tile(later - TILES_IN_FLIGHT).wait()

            start_reads(later)

        change(i)
        write_tile(i).start()

    @pl.loop(lax.max(num_tiles[0] - TILES_IN_FLIGHT, 0), num_tiles[0])
    def _(i):
        write_tile(i).wait()

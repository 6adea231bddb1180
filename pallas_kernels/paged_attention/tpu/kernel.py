"""The Mosaic TPU kernel behind both attention ops: a loop over tiles of queries.

A tile is a run of queries of one sequence. Its part of the context is read in chunks of
several blocks, one DMA per block from the pool in HBM, into one of two buffers: while
one chunk is computed with (`softmax`) the next is on its way, be it of the next tile,
so that short contexts do not wait for memory either. Only blocks of which a query of the
tile sees something are read, and only rows of queries are written.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.paged_attention.tpu import softmax
from pallas_kernels.paged_attention.tpu.plan import NUM_BUFFERS, Plan


class TileScalars(NamedTuple):
    """Scalars of one tile; its queries see positions [start, end)."""

    sequence: Any
    first_query: Any
    num_queries: Any
    first_position: Any
    start: Any
    end: Any
    first_block: Any
    num_chunks: Any  # at least 1, then maybe of no block


def attention_kernel(*refs, plan: Plan, names: tuple[str, ...]):
    """Grid: one step per core, which takes every `num_cores`-th tile."""
    ref = dict(zip(names, refs, strict=True))
    core = pl.program_id(0)
    num_tiles = ref["settings"][2]
    count = lax.div(num_tiles - core + (plan.num_cores - 1), plan.num_cores)

    def tile_of(n) -> TileScalars:
        # one past the last is looked up, not used
        return _read_tile(ref, plan, jnp.minimum(core + n * plan.num_cores, num_tiles - 1))

    def run_tile(n, slot):
        tile, following = tile_of(n), tile_of(n + 1)
        has_following = n + 1 < count
        _copy_queries(ref, tile, lax.rem(n, 2), "wait")

        @pl.when(has_following)
        def _():
            _copy_queries(ref, following, lax.rem(n + 1, 2), "start")

        attend = partial(
            _attend_tile, ref, plan, n, tile, tile_of(jnp.maximum(n - 1, 0)), slot
        )
        chunks = (following, has_following)
        if plan.queries_per_tile == 1:
            attend(*chunks, num_queries=1)
        else:
            # a decode between prefills does not pay for a whole tile
            @pl.when(tile.num_queries <= 1)
            def _():
                attend(*chunks, num_queries=1)

            @pl.when(tile.num_queries > 1)
            def _():
                attend(*chunks, num_queries=plan.queries_per_tile)

        return lax.rem(slot + tile.num_chunks, NUM_BUFFERS)

    @pl.when(count > 0)
    def _():
        softmax.mark_other_heads(ref, plan)
        first = tile_of(0)
        _copy_queries(ref, first, 0, "start")
        _copy_chunk(ref, plan, first, 0, 0, "start")
        lax.fori_loop(0, count, run_tile, jnp.int32(0))
        _copy_result(ref, tile_of(count - 1), "wait")


def _read_tile(ref, plan: Plan, index) -> TileScalars:
    max_tiles = ref["tiles"].shape[0] // 4
    sequence, first_query, num_queries, first_position = (
        ref["tiles"][field * max_tiles + index] for field in range(4)
    )
    end = first_position + num_queries
    start = jnp.int32(0)
    if plan.has_window:
        window = ref["settings"][1]
        start = jnp.where(window > 0, jnp.maximum(first_position - window + 1, 0), 0)
    first_block = lax.div(start, jnp.int32(plan.block_size))
    num_blocks = lax.div(end + (plan.block_size - 1), plan.block_size) - first_block
    chunk = plan.blocks_per_chunk
    num_chunks = jnp.maximum(lax.div(num_blocks + (chunk - 1), chunk), 1)
    return TileScalars(
        sequence,
        first_query,
        num_queries,
        first_position,
        start,
        end,
        first_block,
        num_chunks,
    )


def _copy_queries(ref, tile: TileScalars, buffer, action: str) -> None:
    def copy(i, _):
        descriptor = pltpu.make_async_copy(
            ref["q_hbm"].at[tile.first_query + i],
            ref["queries"].at[buffer, i],
            ref["query_sem"].at[buffer],
        )
        getattr(descriptor, action)()

    lax.fori_loop(0, tile.num_queries, copy, None)


def _copy_result(ref, tile: TileScalars, action: str) -> None:
    def copy(i, _):
        descriptor = pltpu.make_async_copy(
            ref["result"].at[i],
            ref["result_hbm"].at[tile.first_query + i],
            ref["result_sem"].at[0],
        )
        getattr(descriptor, action)()

    lax.fori_loop(0, tile.num_queries, copy, None)


def _copy_chunk(ref, plan: Plan, tile: TileScalars, chunk, slot, action: str) -> None:
    """Starts, or waits for, the copies of the chunk's blocks that the tile reads."""
    first = tile.first_block + chunk * plan.blocks_per_chunk
    last = lax.div(tile.end + (plan.block_size - 1), plan.block_size)
    layer = ref["settings"][0]

    def copy(i, _):
        block = _look_up(ref, plan, tile, first + i)
        pairs = [("kv_hbm", "blocks")]
        if plan.layout.is_quantized:
            pairs.append(("scales_hbm", "scales"))
        for source, target in pairs:
            descriptor = pltpu.make_async_copy(
                ref[source].at[layer, block],
                ref[target].at[slot, i],
                ref["block_sem"].at[slot],
            )
            getattr(descriptor, action)()

    lax.fori_loop(0, jnp.minimum(last - first, plan.blocks_per_chunk), copy, None)


def _look_up(ref, plan: Plan, tile: TileScalars, entry):
    """The block that holds positions from entry · B on."""
    return ref["tables"][tile.sequence * plan.blocks_per_sequence + entry]


def _attend_tile(
    ref,
    plan: Plan,
    n,
    tile: TileScalars,
    previous: TileScalars,
    slot,
    following: TileScalars,
    has_following,
    *,
    num_queries: int,
) -> None:
    """Attention of a tile computed as one of `num_queries`, its first chunk on its way."""
    softmax.begin(ref, plan, lax.rem(n, 2), num_queries)

    def run_chunk(chunk, slot):
        is_last = chunk + 1 == tile.num_chunks

        @pl.when(jnp.logical_not(is_last))
        def _():
            _copy_chunk(ref, plan, tile, chunk + 1, 1 - slot, "start")

        @pl.when(jnp.logical_and(is_last, has_following))
        def _():
            _copy_chunk(ref, plan, following, 0, 1 - slot, "start")

        _copy_chunk(ref, plan, tile, chunk, slot, "wait")
        first_block = tile.first_block + chunk * plan.blocks_per_chunk
        first_key = first_block * plan.block_size
        softmax.clear_unread(ref, plan, tile, first_key, slot)
        softmax.add_chunk(ref, plan, tile, first_key, slot, num_queries)
        return 1 - slot

    lax.fori_loop(0, tile.num_chunks, run_chunk, slot)

    @pl.when(n > 0)
    def _():
        _copy_result(ref, previous, "wait")

    softmax.finish(ref, plan, num_queries)
    _copy_result(ref, tile, "start")


def call_kernel(
    plan: Plan,
    settings: jax.Array,
    tiles: jax.Array,
    tables: jax.Array,
    q: jax.Array,
    cache,
    result: jax.Array | None,
    *,
    vmem_limit_bytes: int,
    interpret: Any,
) -> jax.Array:
    """Runs the kernel. Rows of `result` that belong to no tile keep their content."""
    operands = {"q_hbm": q, "kv_hbm": cache.kv}
    if cache.scales is not None:
        operands["scales_hbm"] = cache.scales
    aliases = {}
    if result is not None:
        aliases = {3 + len(operands): 0}
        operands["unused"] = result
    scratch = plan.buffers()
    semaphores = {"query_sem": NUM_BUFFERS, "block_sem": NUM_BUFFERS, "result_sem": 1}
    scalars = ("settings", "tiles", "tables")
    names = (*scalars, *operands, "result_hbm", *scratch, *semaphores)
    in_hbm = pl.BlockSpec(memory_space=pl.ANY)
    call = pl.pallas_call(
        partial(attention_kernel, plan=plan, names=names),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(plan.num_cores,),
            in_specs=[in_hbm] * len(operands),
            out_specs=in_hbm,
            scratch_shapes=[
                *(pltpu.VMEM(shape, dtype) for shape, dtype in scratch.values()),
                *(pltpu.SemaphoreType.DMA((count,)) for count in semaphores.values()),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((*q.shape[:2], plan.result_lanes), jnp.float32),
        input_output_aliases=aliases,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",), vmem_limit_bytes=vmem_limit_bytes
        ),
        interpret=interpret,
        name="paged_attention_tpu",
    )
    return call(settings, tiles, tables, *operands.values())

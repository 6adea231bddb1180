"""The Hopper kernel behind both attention ops of `gpu`.

One warpgroup (the producer) walks a tile's block table and copies its blocks by TMA into
a ring of chunks in shared memory; the others take 64 rows each and keep an online softmax
(Milakov and Gimelshein 2018) in registers, with both products on the tensor cores, as in
FlashAttention-3 (Shah et al. 2024). A row is one query of one head; all heads that share
a kv head are rows of one tile, so each K and V is copied once for them.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Float32, Int32, Shaped

from pallas_kernels.gpu_compat import Ops, interpret_params
from pallas_kernels.paged_attention.gpu.scratch import (
    Field,
    Scratch,
    Shape,
    make_scratch,
    swizzle_bytes,
)
from pallas_kernels.paged_attention.gpu.tiling import (
    GPU_CHUNK_ROWS,
    GPU_REDUCTION_BYTES,
    GPU_ROWS,
    GPU_TMA_ROWS,
)

LOG2_E = math.log2(math.e)
MATRIX = plgpu.Layout.WGMMA
PER_ROW, PER_COLUMN = MATRIX.reduce(1), MATRIX.reduce(0)


def _aligned(index, multiple: int):
    """Promises the compiler what it cannot see, of an index it does not know."""
    return index if isinstance(index, int) else pl.multiple_of(index, multiple)


def _tile_and_head(s: Shape):
    """Of this program. Heads of a tile run side by side: their K and V are neighbours."""
    program, kv_heads = lax.axis_index("tile_and_head"), jnp.int32(s.kv_heads)
    return lax.div(program, kv_heads), lax.rem(program, kv_heads)


def _look_up(tables, sequence, entry):
    """The block of an entry of a sequence's table."""
    return tables[sequence, entry]


def _produce(s: Shape, field, tables, q, pool, scratch: Scratch, chunks) -> None:
    """Copies the queries, then the chunks as places in the ring become free."""
    kv, scales = pool
    _, head = _tile_and_head(s)
    rows = pl.ds(pl.multiple_of(field(Field.QUERY_ROW), GPU_TMA_ROWS), s.tiling.tile_rows)
    plgpu.copy_gmem_to_smem(q.at[head, rows], scratch.q.at[0], scratch.q_loaded)

    tokens, chunk_tokens = s.copy_tokens, s.tiling.chunk_tokens
    sequence, first_block = field(Field.SEQUENCE), field(Field.FIRST_BLOCK)
    start, end = field(Field.START), field(Field.END)
    column = pl.multiple_of(head * s.columns, s.columns)

    stages = jnp.int32(s.tiling.stages)

    def copy_chunk(chunk, carry):
        step = chunk - chunks[0]
        slot = lax.rem(step, stages)
        sources = []
        for offset in range(0, chunk_tokens, tokens):
            position = chunk * chunk_tokens + offset
            # entries of which nothing is read may hold anything, also no block at all
            is_read = (position < end) & (position + tokens > start)
            position = jnp.where(is_read, position, 0)
            entry = lax.div(position, jnp.int32(s.block_size))
            block = jnp.where(is_read, _look_up(tables, sequence, entry), 0)
            row = (first_block + block) * s.block_size
            row += lax.rem(position, jnp.int32(s.block_size))
            sources.append((offset, pl.multiple_of(row, GPU_TMA_ROWS)))

        @pl.when(step >= stages)
        def _():
            plgpu.barrier_wait(scratch.empty.at[slot])

        for offset, row in sources:
            plgpu.copy_gmem_to_smem(
                kv.at[pl.ds(row, tokens), pl.ds(column, s.columns)],
                scratch.kv.at[slot, pl.ds(offset, tokens)],
                scratch.full.at[slot],
            )
            if s.is_quantized:  # a row of this array has the scales of 8 tokens
                row, offset = lax.div(row, jnp.int32(GPU_TMA_ROWS)), offset // GPU_TMA_ROWS
                plgpu.copy_gmem_to_smem(
                    scales.at[pl.ds(row, tokens // GPU_TMA_ROWS)],
                    scratch.scales.at[slot, pl.ds(offset, tokens // GPU_TMA_ROWS)],
                    scratch.full.at[slot],
                )
        return carry

    def drain(chunk, carry):  # a barrier ends when all its phases have been seen
        plgpu.barrier_wait(scratch.empty.at[lax.rem(chunk - chunks[0], stages)])
        return carry

    lax.fori_loop(chunks[0], chunks[1], copy_chunk, 0)
    lax.fori_loop(jnp.maximum(chunks[0], chunks[1] - stages), chunks[1], drain, 0)


def _consume(s: Shape, ops: Ops, field, scratch: Scratch, chunks, warpgroup):
    """Attention of one warpgroup: 64 rows, and all or some columns of V.

    Returns the largest logit (base 2), the sum of weights and the weighted sum of V.
    """
    chunk_tokens, columns = s.tiling.chunk_tokens, s.part_columns
    row, part = _rows_and_part(s, warpgroup)
    first_value = s.first_value + part * columns
    start, end = field(Field.START), field(Field.END)
    # row r sees keys [seen_from[r], seen_to[r])
    tile_row = ops.iota((GPU_ROWS,), 0, PER_ROW) + row
    seen_to = lax.div(tile_row + (field(Field.FIRST_ROW) + s.groups), jnp.int32(s.groups))
    seen_from = jnp.maximum(seen_to - field(Field.WINDOW), start)
    seen_to = jnp.minimum(seen_to, end)
    plgpu.barrier_wait(scratch.q_loaded)

    def add_chunk(chunk, state):
        slot = lax.rem(chunk - chunks[0], jnp.int32(s.tiling.stages))
        position = chunk * chunk_tokens
        chunk_end = position + chunk_tokens
        # rows of the ring past the chunk's tokens hold anything
        read = (start - position, jnp.minimum(end, chunk_end) - position)
        plgpu.barrier_wait(scratch.full.at[slot])
        if s.is_quantized:
            _widen(s, ops, scratch, slot, read, warpgroup)
        # 0, which the compiler does not know: an address that does not depend on the
        # loop it would keep in registers, once for each of dozens of instructions
        zero = jnp.minimum(chunk, 0)
        q = scratch.q.at[zero, pl.ds(row, GPU_ROWS)]
        kv = scratch.wide.at[zero] if s.is_quantized else scratch.kv.at[slot]
        v = kv.at[:, pl.ds(first_value, columns)]
        logits = ops.scores(q, kv.at[:, pl.ds(0, s.head_dim)])
        if s.is_quantized:
            scales = _scales(s, ops, scratch.scales.at[slot], 0)
            logits *= lax.broadcast_in_dim(scales, logits.shape, [1])
        else:

            @pl.when((read[0] > 0) | (read[1] < GPU_CHUNK_ROWS))
            def _():
                _clear_unread(s, ops, v, read, scratch, warpgroup)

        key = ops.iota(logits.shape, 1, MATRIX) + position
        seen = key < lax.broadcast_in_dim(jnp.minimum(seen_to, chunk_end), key.shape, [0])
        seen &= key >= lax.broadcast_in_dim(seen_from, key.shape, [0])
        logits = jnp.where(seen, _scaled(s, logits), -jnp.inf)
        state, weights = _reweigh(state, logits)
        if s.is_quantized:
            scales = _scales(s, ops, scratch.scales.at[slot], 1)
            # those of keys that must not be read may be NaN
            scales = lax.broadcast_in_dim(scales, weights.shape, [1])
            weights = jnp.where(weights > 0, weights * scales, 0.0)
        largest, total, values = state
        values = ops.add_product(values, weights.astype(q.dtype), v)
        plgpu.barrier_arrive(scratch.empty.at[slot])
        return largest, total, values

    return lax.fori_loop(
        chunks[0],
        chunks[1],
        add_chunk,
        (
            ops.cast(jnp.full((GPU_ROWS,), -jnp.inf, jnp.float32), PER_ROW),
            ops.cast(jnp.zeros((GPU_ROWS,), jnp.float32), PER_ROW),
            ops.cast(jnp.zeros((GPU_ROWS, columns), jnp.float32), MATRIX),
        ),
    )


def _rows_and_part(s: Shape, warpgroup):
    """First row of a consumer in its tile, and which part of V's columns is its."""
    if s.tiling.value_parts == 1:
        return pl.multiple_of(warpgroup * GPU_ROWS, GPU_ROWS), 0
    return 0, warpgroup


def _clear_unread(s: Shape, ops: Ops, v, read, scratch: Scratch, warpgroup) -> None:
    """Zeroes the rows of V outside [read), which may be NaN: 0 · NaN is NaN."""
    width = s.slab_columns
    if s.is_latent and s.tiling.consumers > 1:
        _meet(scratch)  # V is a part of K, which nobody may still be reading

    @pl.when(warpgroup < s.tiling.value_parts)
    def _():
        for column in range(0, v.shape[1], width):
            columns = v.at[:, pl.ds(column, width)]
            columns[...] = _only_read(ops, ops.load(columns, MATRIX), read)
        plgpu.commit_smem()

    if s.tiling.row_groups > 1:  # some use what others cleared
        _meet(scratch)


def _only_read(ops: Ops, tile, read):
    """Zero in the rows of keys outside [read)."""
    key = ops.iota(tile.shape, 0, MATRIX)
    return jnp.where((key >= read[0]) & (key < read[1]), tile, jnp.zeros_like(tile))


def _widen(s: Shape, ops: Ops, scratch: Scratch, slot, read, warpgroup) -> None:
    """Converts a chunk to q's dtype, which is exact; the consumers share the columns."""
    if s.tiling.consumers > 1:
        _meet(scratch)  # nobody reads the chunk before
    stored, consumers = scratch.kv.at[slot], s.tiling.consumers
    width = swizzle_bytes(s.columns, stored.dtype, most=64)
    num_slabs = s.columns // width

    # not unrolled: the addresses of all slabs would take too many registers
    @pl.loop(0, -(-num_slabs // consumers))
    def _(i):
        slab = i * consumers + warpgroup

        @pl.when(slab < num_slabs)
        def _():
            columns = pl.ds(pl.multiple_of(slab * width, width), width)
            tile = ops.load(stored.at[:, columns], MATRIX).astype(jnp.float32)
            # some bit patterns of float8 are NaN
            tile = _only_read(ops, tile, read).astype(scratch.wide.dtype)
            scratch.wide.at[0, :, columns][...] = tile

    plgpu.commit_smem()
    if s.tiling.consumers > 1:
        _meet(scratch)


def _scales(s: Shape, ops: Ops, scales, part: int):
    """Of the rows of K (part 0) or V (1) of a chunk's keys."""
    row = 0 if s.is_latent else 2 * _tile_and_head(s)[1] + part
    return ops.every(scales, row, s.num_scales, PER_COLUMN)


def _meet(scratch: Scratch) -> None:
    plgpu.barrier_arrive(scratch.together)
    plgpu.barrier_wait(scratch.together)


def _scaled(s: Shape, products):
    """Logits to base 2."""
    if s.soft_cap is None:
        return products * (s.scale * LOG2_E)
    # the hardware's tanh is off by 2^-11, too much when multiplied by a cap
    power = jnp.exp2(products * (2 * LOG2_E * s.scale / s.soft_cap))
    return (1 - 2 / (power + 1)) * (s.soft_cap * LOG2_E)


def _reweigh(state, logits):
    """The weights of a chunk, and the state with earlier chunks weighed alike."""
    largest, total, values = state
    new_largest = jnp.maximum(largest, logits.max(axis=1))
    # -inf - -inf is NaN: a row that has seen nothing yet counts from 0
    base = jnp.where(new_largest == -jnp.inf, 0.0, new_largest)
    weights = jnp.exp2(logits - lax.broadcast_in_dim(base, logits.shape, [0]))
    decay = jnp.exp2(largest - base)
    total = total * decay + weights.sum(axis=1)
    values *= lax.broadcast_in_dim(decay, values.shape, [0])
    return (new_largest, total, values), weights


def _write(s: Shape, field, state, out, lse, scratch: Scratch, warpgroup, is_read) -> None:
    """Normalises; writes only groups of rows that the tile has, and lse of all rows."""
    largest, total, values = state
    is_empty = total == 0
    total = jnp.where(is_empty, 1.0, total)
    row, part = _rows_and_part(s, warpgroup)
    tile, head = _tile_and_head(s)
    first = pl.multiple_of(tile * s.tiling.tile_rows + row, GPU_TMA_ROWS)
    where = (lax.axis_index("split"), head)

    scratch.lse.at[warpgroup][...] = jnp.where(
        is_empty, -jnp.inf, largest * math.log(2) + jnp.log(total)
    )
    values /= lax.broadcast_in_dim(total, values.shape, [0])
    if s.tiling.value_parts > 1 and scratch.out is None:
        _meet(scratch)  # q is not needed any more
    for column in range(0, s.part_columns, s.slab_columns):
        columns = pl.ds(
            _aligned(part * s.part_columns + column, s.slab_columns), s.slab_columns
        )
        if scratch.out is None:
            slab = scratch.q.at[0, pl.ds(row, GPU_ROWS), columns]
        else:
            slab = scratch.out.at[warpgroup]
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # the slab before
        slab[...] = values[:, column : column + s.slab_columns].astype(s.out_dtype)
        plgpu.commit_smem()
        for i in range(0, GPU_ROWS, GPU_TMA_ROWS):

            @pl.when(is_read & (row + i < field(Field.NUM_ROWS)))
            def _(i=i, slab=slab, columns=columns):
                rows = pl.ds(pl.multiple_of(first + i, GPU_TMA_ROWS), GPU_TMA_ROWS)
                plgpu.copy_smem_to_gmem(
                    slab.at[pl.ds(i, GPU_TMA_ROWS)], out.at[*where, rows, columns]
                )

    @pl.when(jnp.equal(part, 0))
    def _():
        plgpu.copy_smem_to_gmem(
            scratch.lse.at[warpgroup], lse.at[*where, pl.ds(first, GPU_ROWS)]
        )

    plgpu.wait_smem_to_gmem(0)


def attend_tiles(
    s: Shape,
    tile_map: Int32[Array, "tiles 8"],
    tables: Int32[Array, "S P"],
    q: Float[Array, "K rows D"],
    kv: Shaped[Array, "tokens width"],
    scales: Float32[Array, "token_rows scale_width"] | None,
    *,
    interpret: bool,
) -> tuple[Float[Array, "splits K tile_rows Dv"], Float32[Array, "splits K tile_rows"]]:
    """Normalised attention and lse (natural) of every row of every tile, per split.

    Rows from a tile's NUM_ROWS on are unspecified, also where lse is -inf.
    """
    tiling, ops = s.tiling, Ops(interpret=interpret)

    def paged_attention_hopper(tile_map, tables, q, pool, out, lse, *scratch):
        scratch = Scratch(*scratch)
        warpgroup = lax.axis_index("warpgroup")
        tile, _ = _tile_and_head(s)

        def field(name: Field):
            return tile_map[tile, int(name)]

        tokens = jnp.int32(tiling.chunk_tokens)
        first = lax.div(field(Field.START), tokens)
        end = lax.div(field(Field.END) + (tokens - 1), tokens)
        length = lax.div(end - first + (tiling.splits - 1), jnp.int32(tiling.splits))
        first += lax.axis_index("split") * length
        chunks = (first, jnp.minimum(first + length, end))

        @pl.when(warpgroup == tiling.consumers)
        def _():
            if tiling.consumers > 1:
                plgpu.set_max_registers(40, action="decrease")
            _produce(s, field, tables, q, pool, scratch, chunks)

        @pl.when(warpgroup < tiling.consumers)
        def _():
            if tiling.consumers > 1:
                plgpu.set_max_registers(232, action="increase")
            state = _consume(s, ops, field, scratch, chunks, warpgroup)
            is_read = chunks[0] < chunks[1]
            _write(s, field, state, out, lse, scratch, warpgroup, is_read)

    rows = s.num_tiles * tiling.tile_rows
    shape = (tiling.splits, s.kv_heads, rows)
    run = plgpu.kernel(
        paged_attention_hopper,
        out_type=(
            jax.ShapeDtypeStruct((*shape, s.value_dim), s.out_dtype),
            jax.ShapeDtypeStruct(shape, jnp.float32),
        ),
        scratch_types=tuple(make_scratch(s, q.dtype, kv.dtype)),
        # the last axis may have more than 65,535 programs, and runs fastest
        grid=(tiling.splits, s.num_tiles * s.kv_heads),
        grid_names=("split", "tile_and_head"),
        num_threads=tiling.consumers + 1,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(
            approx_math=True,
            lowering_semantics=plgpu.LoweringSemantics.Warpgroup,
            reduction_scratch_bytes=GPU_REDUCTION_BYTES,
        ),
        interpret=interpret_params() if interpret else None,
    )
    return run(tile_map, tables, q, (kv, scales))

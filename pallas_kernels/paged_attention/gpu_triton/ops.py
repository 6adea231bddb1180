"""Both attention ops in Pallas Triton, for Ampere, Hopper and AMD chips.

Where sequences are few and long, the keys of a tile are split between programs, and their
parts are put together by lse.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Float32, Int32

from pallas_kernels.kv_blocks import KVBlocks
from pallas_kernels.layout import KVLayout
from pallas_kernels.paged_attention.api import Window
from pallas_kernels.paged_attention.gpu_triton.kernel import (
    Problem,
    Tiles,
    choose_products,
    paged_attention_kernel,
)
from pallas_kernels.paged_attention.gpu_triton.tiling import TritonTiling, triton_tiling
from pallas_kernels.paged_attention.merging import merge_parts
from pallas_kernels.triton_calls import scalar_argument, triton_call

MAX_BLOCK_SIZE = 256
MAX_HEAD_DIM = 256
MAX_LATENT = (512, 128)  # of value_dim, and of the rest of a row


def _attend(
    problem: Problem,
    tiles: Tiles,
    q: Float[Array, "T H D"],
    cache: KVBlocks,
    layer: Int32[Array, ""] | int,
    block_tables: Int32[Array, "S P"],
    *,
    window: Window,
    sinks: Float[Array, "H"] | None,
    interpret: bool,
) -> tuple[Float[Array, "T H Dv"], Float32[Array, "T H"]]:
    """Every query belongs to one tile, so every row of the outputs is written."""
    num_queries, num_heads, _ = q.shape
    splits = problem.tiling.num_splits
    layout = cache.layout
    arguments = [*tiles, scalar_argument(layer), block_tables, q, cache.kv]
    if cache.scales is not None:
        arguments.append(cache.scales)
    if window is not None:
        arguments.append(scalar_argument(window))
    if sinks is not None:
        arguments.append(sinks.astype(jnp.float32))
    part_dtype = q.dtype if splits == 1 else jnp.float32
    shape = (splits, num_queries, num_heads)
    out, lse = triton_call(
        partial(paged_attention_kernel, problem),
        *arguments,
        grid=(len(tiles.sequence), layout.kv_heads, splits),
        outputs=(
            jax.ShapeDtypeStruct((*shape, layout.value_dim), part_dtype),
            jax.ShapeDtypeStruct(shape, jnp.float32),
        ),
        num_warps=problem.tiling.num_warps,
        num_stages=problem.tiling.num_stages,
        interpret=interpret,
    )
    if splits == 1:
        return out[0], lse[0]
    out, lse = merge_parts(out, lse)
    return out.astype(q.dtype), lse


def decode_tiles(context_lens: Int32[Array, "S"], group: int, rows_per_tile: int) -> Tiles:
    """All tiles of sequence 0, then of sequence 1, ...: G rows each."""
    num_seqs = context_lens.shape[0]
    first_rows = np.arange(0, group, rows_per_tile, dtype=np.int32)
    sequence = np.repeat(np.arange(num_seqs, dtype=np.int32), len(first_rows))
    return Tiles(
        sequence=jnp.asarray(sequence),
        first_query=jnp.asarray(sequence),
        num_queries=jnp.ones_like(sequence),
        first_position=(context_lens - 1)[sequence],
        first_row=jnp.asarray(np.tile(first_rows, num_seqs)),
    )


def ragged_tiles(
    query_starts: Int32[Array, "S1"],
    context_lens: Int32[Array, "S"],
    num_seqs: Int32[Array, "1"],
    *,
    num_queries: int,
    group: int,
    rows_per_tile: int,
) -> Tiles:
    """Cuts the rows of each sequence into tiles.

    Queries of no sequence form one more sequence, without a context, so that their rows
    are written too. There is room for as many tiles as there can be; those left over have
    no rows.
    """
    last = query_starts[num_seqs[0]]
    is_sequence = jnp.arange(len(context_lens), dtype=jnp.int32) < num_seqs[0]
    counts = jnp.where(is_sequence, query_starts[1:] - query_starts[:-1], 0)
    counts = jnp.append(counts, num_queries - last)
    starts = jnp.append(query_starts[:-1], last)
    positions = jnp.append(context_lens, 0) - counts
    size = jnp.int32(rows_per_tile)
    tiles_of = lax.div(counts * group + (size - 1), size)
    tile_ends = jnp.cumsum(tiles_of, dtype=jnp.int32)
    most_sequences = min(len(context_lens) + 1, num_queries)
    limit = (num_queries * group + most_sequences * (rows_per_tile - 1)) // rows_per_tile
    tile = jnp.arange(limit, dtype=jnp.int32)
    # a comparison with all is one program on a GPU, a binary search a loop of them
    sequence = jnp.sum(tile[:, None] >= tile_ends, axis=1, dtype=jnp.int32)
    is_tile = sequence < len(counts)
    sequence = jnp.minimum(sequence, len(counts) - 1)
    first_tile = tile_ends[sequence] - tiles_of[sequence]
    return Tiles(
        sequence=sequence,
        first_query=starts[sequence],
        num_queries=jnp.where(is_tile, counts[sequence], 0),
        first_position=jnp.where(is_tile, positions[sequence], -1),
        first_row=jnp.where(is_tile, (tile - first_tile) * size, 0),
    )


def _make_problem(
    q, cache: KVBlocks, block_tables, tiling, device_kind, max_queries: int, **options
) -> Problem:
    """Checks what this implementation takes, and chooses tiles if none are given."""
    layout = cache.layout
    _check(layout, cache.block_size)
    group = q.shape[1] // layout.kv_heads
    products = choose_products(q.dtype, layout.dtype)
    if tiling is None:
        tiling = triton_tiling(
            num_seqs=block_tables.shape[0],
            max_queries=max_queries,
            group=group,
            kv_heads=layout.kv_heads,
            head_dim=layout.head_dim,
            max_context=block_tables.shape[1] * cache.block_size,
            products=products,
            device_kind=device_kind,
        )
    return Problem(
        layout=layout,
        block_size=cache.block_size,
        group=group,
        scale=options["scale"],
        soft_cap=options["soft_cap"],
        has_window=options["window"] is not None,
        has_sinks=options["sinks"] is not None,
        products=products,
        tiling=tiling,
    )


def _check(layout: KVLayout, block_size: int) -> None:
    if block_size > MAX_BLOCK_SIZE:
        raise ValueError(
            f"{block_size=} of implementation='gpu_triton' must be at most "
            f"{MAX_BLOCK_SIZE}; use smaller blocks."
        )
    rest = layout.head_dim - layout.value_dim
    if layout.packing == "latent" and (
        layout.value_dim > MAX_LATENT[0] or rest > MAX_LATENT[1]
    ):
        raise ValueError(
            f"value_dim={layout.value_dim} with {rest} more numbers in a latent row must "
            f"be at most {MAX_LATENT} with implementation='gpu_triton', which keeps them "
            "in registers; use implementation='xla'."
        )
    if layout.packing != "latent" and layout.head_dim > MAX_HEAD_DIM:
        raise ValueError(
            f"head_dim={layout.head_dim} of implementation='gpu_triton' must be at most "
            f"{MAX_HEAD_DIM}, which it keeps in registers; use implementation='xla'."
        )


def paged_attention_gpu_triton(
    q: Float[Array, "S H D"],
    cache: KVBlocks,
    layer: Int32[Array, ""] | int,
    block_tables: Int32[Array, "S P"],
    context_lens: Int32[Array, "S"],
    *,
    scale: float,
    window: Window,
    soft_cap: float | None,
    sinks: Float[Array, "H"] | None,
    tiling: TritonTiling | None,
    device_kind: str | None,
    interpret: bool = False,
) -> tuple[Float[Array, "S H Dv"], Float32[Array, "S H"]]:
    """See `pallas_kernels.paged_attention.paged_attention`."""
    options = dict(scale=scale, soft_cap=soft_cap, window=window, sinks=sinks)
    problem = _make_problem(q, cache, block_tables, tiling, device_kind, 1, **options)
    tiles = decode_tiles(context_lens, problem.group, problem.tiling.rows_per_tile)
    return _attend(
        problem,
        tiles,
        q,
        cache,
        layer,
        block_tables,
        window=window,
        sinks=sinks,
        interpret=interpret,
    )


def ragged_paged_attention_gpu_triton(
    q: Float[Array, "T H D"],
    cache: KVBlocks,
    layer: Int32[Array, ""] | int,
    block_tables: Int32[Array, "S P"],
    context_lens: Int32[Array, "S"],
    query_starts: Int32[Array, "S1"],
    num_seqs: Int32[Array, "1"],
    *,
    scale: float,
    window: Window,
    soft_cap: float | None,
    sinks: Float[Array, "H"] | None,
    tiling: TritonTiling | None,
    device_kind: str | None,
    interpret: bool = False,
) -> tuple[Float[Array, "T H Dv"], Float32[Array, "T H"]]:
    """See `pallas_kernels.paged_attention.ragged_paged_attention`."""
    options = dict(scale=scale, soft_cap=soft_cap, window=window, sinks=sinks)
    problem = _make_problem(
        q, cache, block_tables, tiling, device_kind, q.shape[0], **options
    )
    tiles = ragged_tiles(
        query_starts,
        context_lens,
        num_seqs,
        num_queries=q.shape[0],
        group=problem.group,
        rows_per_tile=problem.tiling.rows_per_tile,
    )
    return _attend(
        problem,
        tiles,
        q,
        cache,
        layer,
        block_tables,
        window=window,
        sinks=sinks,
        interpret=interpret,
    )

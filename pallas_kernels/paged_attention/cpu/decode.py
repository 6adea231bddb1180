"""CPU attention of one query with few heads per kv head: bound by reading K and V.

All heads of a token are read together, so that the pool streams through the caches
once. A row of K or V is loaded, converted in registers where it is no float32, and used
by all query heads of its kv head. Next to the arithmetic on each row, the same row of a
token in the next tile is asked for: spread so, memory and arithmetic both stay busy.
"""

import numpy as np

from pallas_kernels.numba_ffi import compiled
from pallas_kernels.paged_attention.cpu.vectors import (
    LANES,
    ROWS_AT_ONCE,
    add_weighted,
    cap_logits,
    dot_rows,
    exponentials,
    largest,
    multiply,
    multiply_rows,
    prefetch,
)
from pallas_kernels.paged_attention.cpu.work import (
    PART_END,
    PART_START,
    QUERY,
    SEQ,
    clear,
    find_tokens,
    round_up,
    row_scale,
)

DECODE_TILE = 32  # tokens
MAX_GROUP = 15  # from 16 query heads a kv head on, tiles of rows are faster


@compiled
def decode_scratch(pool, problem):
    """q, logits, scales of a tile, and places of tokens of two."""
    heads = problem.num_heads
    return (
        np.empty(heads * pool.dim, np.float32),
        np.empty(heads * DECODE_TILE, np.float32),
        np.empty(pool.rows * DECODE_TILE, np.float32),
        np.empty(DECODE_TILE + LANES, np.int64),
        np.empty(DECODE_TILE + LANES, np.int64),
    )


@compiled
def _products(pool, problem, q, places, coming, count, logits):
    """q · K of every head; four tokens at a time, up to three past `count`.

    The first rows of a kv head ask for the next tile, further ones for what is there.
    """
    dim, group = pool.dim, problem.group
    for first in range(0, count, 4):
        for kv_head in range(problem.num_heads // group):
            shift, end = 2 * kv_head * dim, (kv_head + 1) * group
            later = coming
            for row in range(kv_head * group, end, ROWS_AT_ONCE):
                dot_rows(
                    min(ROWS_AT_ONCE, end - row), pool.numbers, places, later, first,
                    shift, q, row * dim, dim, dim // LANES, logits, row * DECODE_TILE,
                    DECODE_TILE,
                )  # fmt: skip
                later = places


@compiled
def _add_values(pool, problem, places, coming, count, weights, state, state_row):
    """Adds the weighted rows of V."""
    group = problem.group
    for kv_head in range(problem.num_heads // group):
        shift = 0 if pool.is_latent else (2 * kv_head + 1) * pool.dim
        end = (kv_head + 1) * group
        later = places if pool.is_latent else coming  # whose V is part of K
        for row in range(kv_head * group, end, ROWS_AT_ONCE):
            add_weighted(
                min(ROWS_AT_ONCE, end - row), pool.numbers, places, later, count, shift,
                weights, row * DECODE_TILE, DECODE_TILE,
                state.sums, (state_row + row) * state.width, state.width,
                pool.value_dim // LANES,
            )  # fmt: skip
            later = places


@compiled
def _weights(pool, problem, count, logits, scales, state, state_row):
    """One step of the online softmax: logits become weights, sums so far are scaled."""
    vectors = round_up(count, LANES) // LANES
    for head in range(problem.num_heads):
        at, row = head * DECODE_TILE, state_row + head
        key_row = 2 * (head // problem.group)
        if pool.is_quantized:
            multiply_rows(logits, at, vectors, scales, key_row * DECODE_TILE)
        if problem.soft_cap > 0:
            cap_logits(logits, at, vectors, problem.soft_cap)
        for i in range(count, vectors * LANES):
            logits[at + i] = -np.inf
        top = largest(logits, at, vectors)
        before = state.largest[row]
        if top > before:
            decay = np.exp(before - top)
            state.largest[row] = top
            state.total[row] *= decay
            multiply(state.sums, row * state.width, state.width // LANES, decay)
        state.total[row] += exponentials(logits, at, vectors, state.largest[row])
        if pool.is_quantized:
            value_row = 0 if pool.is_latent else key_row + 1
            multiply_rows(logits, at, vectors, scales, value_row * DECODE_TILE)


@compiled
def decode_part(pool, problem, job, part, scratch, state, state_row):
    """Rows [state_row, state_row + H) become the softmax over the part's keys."""
    start, end = part[PART_START], part[PART_END]
    seq, query = job[SEQ], job[QUERY]
    q, logits, scales, places, coming = scratch
    heads = problem.num_heads
    for i in range(heads * pool.dim):
        q[i] = problem.q[query * heads * pool.dim + i] * problem.scale
    clear(state, state_row, heads)
    places[:] = pool.start  # all that is asked for must be an address
    count = min(DECODE_TILE, end - start)
    find_tokens(pool, problem, seq, start, count, coming)
    for i in range(count):
        prefetch(pool.numbers, coming[i], pool.rows * pool.dim)
    for first in range(start, end, DECODE_TILE):
        count = min(DECODE_TILE, end - first)
        places, coming = coming, places
        ahead = first + DECODE_TILE
        if ahead < end:
            find_tokens(pool, problem, seq, ahead, min(DECODE_TILE, end - ahead), coming)
        _products(pool, problem, q, places, coming, count, logits)
        if pool.is_quantized:
            for row in range(pool.rows):
                for i in range(count):
                    scales[row * DECODE_TILE + i] = row_scale(pool, places[i], row)
        _weights(pool, problem, count, logits, scales, state, state_row)
        _add_values(pool, problem, places, coming, count, logits, state, state_row)

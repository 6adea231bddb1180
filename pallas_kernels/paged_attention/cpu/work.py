"""What the parts of the CPU kernel share: the problem, the pool, softmax of parts."""

from typing import Any, NamedTuple

import numpy as np

from pallas_kernels.numba_ffi import compiled
from pallas_kernels.paged_attention.cpu.vectors import LANES, LARGEST, convert_row

TILE = 64  # tokens of K and V between two steps of the online softmax
ALL_HEADS = -1


# columns of a job, then of a part
JOB_FIELDS = 8
SEQ, QUERY, NUM_QUERIES, KV_HEAD, START, END, PARTS, STATE_ROW = range(JOB_FIELDS)
PART_FIELDS = 4
JOB, PART_START, PART_END, PART_ROW = range(PART_FIELDS)


Number = Any  # of Numba's or NumPy's, as wide as the code that makes it says


class Pool(NamedTuple):
    """One layer of the pool. Arrays are flat, places in them are indices of numbers."""

    numbers: np.ndarray
    scales: np.ndarray  # of one entry if `is_quantized` is 0
    start: Number  # of the layer
    block_size: Number
    rows: Number  # of a token
    dim: Number
    value_dim: Number
    is_quantized: Number
    is_latent: Number
    factor: Number  # of each number, beyond its scale


class Problem(NamedTuple):
    """The other arguments of the op."""

    q: np.ndarray
    num_heads: Number
    group: Number  # query heads that share a kv head
    tables: np.ndarray
    table_width: Number
    context_lens: np.ndarray
    query_starts: np.ndarray
    num_seqs: Number
    sinks: np.ndarray
    has_sinks: Number
    scale: Number
    soft_cap: Number  # 0 for none
    window: Number  # 0 for all
    chunk_size: Number  # 0 for none
    threads: Number


class Softmax(NamedTuple):
    """State of the online softmax, row by row."""

    sums: np.ndarray  # of weighted V; rows of `width`
    largest: np.ndarray
    total: np.ndarray
    width: Number


@compiled
def round_up(value, multiple):
    return (value + multiple - 1) // multiple * multiple


@compiled
def make_softmax(rows, value_dim):
    width = round_up(value_dim, 2 * LANES)
    return Softmax(
        np.empty(rows * width, np.float32),
        np.empty(rows, np.float32),
        np.empty(rows, np.float32),
        width,
    )


@compiled
def clear(state, first, count):
    """Rows [first, first + count) have seen no key."""
    state.sums[first * state.width : (first + count) * state.width] = 0
    state.largest[first : first + count] = -LARGEST
    state.total[first : first + count] = 0


@compiled
def first_seen(problem, position):
    """The first key that the query at `position` sees."""
    low = 0
    if problem.window > 0:
        low = max(low, position - problem.window + 1)
    if problem.chunk_size > 0:
        low = max(low, position - position % problem.chunk_size)
    return low


@compiled
def find_tokens(pool, problem, seq, first, count, places):
    """Where the tokens from `first` on start in the pool.

    The list is filled up to a multiple of LANES with its last entry.
    """
    token = pool.rows * pool.dim
    entry = first // pool.block_size
    offset = first - entry * pool.block_size
    done = 0
    while done < count:
        block = np.int64(problem.tables[seq * problem.table_width + entry])
        place = pool.start + (block * pool.block_size + offset) * token
        stop = min(count, done + pool.block_size - offset)
        for i in range(done, stop):
            places[i] = place
            place += token
        done = stop
        offset = 0
        entry += 1
    for i in range(count, round_up(count, LANES)):
        places[i] = places[count - 1]


@compiled
def row_scale(pool, place, row):
    """The factor of the numbers in a row of the token at `place`."""
    if not pool.is_quantized:
        return np.float32(1)
    token = place // (pool.rows * pool.dim)
    return pool.scales[token * pool.rows + row] * np.float32(pool.factor)


@compiled
def stage_rows(pool, places, count, row, out, width):
    """Copies a row of each of `count` tokens, as float32 numbers, to rows of `width`."""
    for i in range(count):
        factor = row_scale(pool, places[i], row)
        convert_row(
            pool.numbers, places[i] + row * pool.dim, pool.dim, factor, out, i * width
        )


@compiled
def merge(state, first, rows, parts):
    """Joins the softmax of parts of the keys into that of the first part.

    Part p has rows [first + p · rows, first + (p + 1) · rows).
    """
    for row in range(first, first + rows):
        largest = state.largest[row]
        for part in range(1, parts):
            largest = max(largest, state.largest[row + part * rows])
        total = np.float32(0)
        for part in range(parts):
            other = row + part * rows
            factor = np.exp(state.largest[other] - largest)
            total += state.total[other] * factor
            target, source = row * state.width, other * state.width
            if part == 0:
                for i in range(state.width):
                    state.sums[target + i] *= factor
            else:
                for i in range(state.width):
                    state.sums[target + i] += state.sums[source + i] * factor
        state.largest[row] = largest
        state.total[row] = total


@compiled
def finish(state, row, problem, query, head, value_dim, out, lse):
    """Divides by the sum of weights, sinks included; writes a row of the result."""
    largest, total = state.largest[row], state.total[row]
    factor = np.float32(1)
    if problem.has_sinks:
        base = max(largest, problem.sinks[head])
        factor = np.exp(largest - base)
        total = total * factor + np.exp(problem.sinks[head] - base)
        largest = base
    factor /= total
    target = (query * problem.num_heads + head) * value_dim
    for i in range(value_dim):
        out[target + i] = state.sums[row * state.width + i] * factor
    lse[query * problem.num_heads + head] = largest + np.log(total)

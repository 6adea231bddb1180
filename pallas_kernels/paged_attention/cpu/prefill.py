"""CPU attention of many query rows on one kv head: bound by the products.

A tile of K and V is copied to a scratch of the thread, as float32. Rows of queries lie
across the lanes, so that the softmax needs no sums across lanes, and both products go
through one routine that keeps its results in registers.
"""

import numpy as np

from pallas_kernels.numba_ffi import compiled
from pallas_kernels.paged_attention.cpu.vectors import (
    LANES,
    PANEL,
    PANEL_ROWS,
    cap_logits,
    mask_columns,
    multiply_panel,
    softmax_columns,
)
from pallas_kernels.paged_attention.cpu.work import (
    KV_HEAD,
    NUM_QUERIES,
    PART_END,
    PART_START,
    QUERY,
    SEQ,
    TILE,
    clear,
    find_tokens,
    first_seen,
    round_up,
    stage_rows,
)

ROWS = 192  # about how many share a copy of K and V; fewer where rows are long
LONG_DIM = 128


@compiled
def queries_per_tile(pool, problem):
    rows = ROWS if pool.dim <= LONG_DIM else ROWS // 2
    return max(1, rows // problem.group)


@compiled
def tile_scratch(pool, problem, max_rows):
    """q in panels, K, V, logits of a panel, decay, first and last key seen, places.

    All but empty in a step without tiles, which must not pay for clearing them.
    """
    rows = round_up(max_rows, PANEL)
    width = round_up(pool.value_dim, PANEL)
    tile = TILE if max_rows > 0 else 0
    keys = np.zeros(tile * pool.dim + PANEL, np.float32)
    return (
        np.empty(rows * pool.dim, np.float32),
        keys,
        keys if pool.is_latent else np.zeros(tile * width, np.float32),
        np.empty(tile * PANEL, np.float32),
        np.ones(rows, np.float32),
        np.zeros(rows, np.int32),
        np.zeros(rows, np.int32),
        np.empty(TILE + LANES, np.int64),
    )


@compiled
def _load_queries(problem, dim, query, num_queries, position, kv_head, scratch):
    """Row r is query r // G and head kv_head · G + r % G; others are 0 and see all."""
    q, _, _, _, _, low, high, _ = scratch
    rows = num_queries * problem.group
    for row in range(round_up(rows, PANEL)):
        target = row // PANEL * PANEL * dim + row % PANEL
        low[row], high[row] = 0, 2**31 - 1
        if row >= rows:
            for i in range(dim):
                q[target + i * PANEL] = 0
            continue
        index = row // problem.group
        head = kv_head * problem.group + row % problem.group
        source = ((query + index) * problem.num_heads + head) * dim
        for i in range(dim):
            q[target + i * PANEL] = problem.q[source + i] * problem.scale
        low[row], high[row] = first_seen(problem, position + index), position + index


@compiled
def _attend_panel(pool, problem, panel, last_row, first, count, scratch, state, state_row):
    """Adds the staged keys from `first` on to the rows of a panel."""
    q, keys, values, logits, decay, low, high, _ = scratch
    dim, row = pool.dim, panel * PANEL
    last = min(row + PANEL - 1, last_row)
    count = min(count, np.int64(high[last]) - first + 1)
    if count <= 0 or first + count <= low[row]:
        return
    for i in range(0, count, PANEL_ROWS):
        multiply_panel(
            0,
            keys,
            i * dim,
            dim,
            1,
            q,
            row * dim,
            PANEL,
            dim,
            logits,
            i * PANEL,
            PANEL,
            decay,
            0,
        )
    if problem.soft_cap > 0:
        cap_logits(logits, 0, count * PANEL // LANES, problem.soft_cap)
    if first + count - 1 > high[row] or first < low[last]:
        for i in range(0, PANEL, LANES):
            mask_columns(logits, i, count, PANEL, first, low, high, row + i)
    for i in range(0, PANEL, LANES):
        softmax_columns(
            logits,
            i,
            count,
            PANEL,
            state.largest,
            state.total,
            state_row + row + i,
            decay,
            row + i,
        )
    value_width = dim if pool.is_latent else state.width
    for column in range(0, state.width, PANEL):
        for i in range(0, PANEL, PANEL_ROWS):
            multiply_panel(
                1,
                logits,
                i,
                1,
                PANEL,
                values,
                column,
                value_width,
                count,
                state.sums,
                (state_row + row + i) * state.width + column,
                state.width,
                decay,
                row + i,
            )


@compiled
def tile_part(pool, problem, job, part, scratch, state, state_row):
    """Rows from `state_row` on become the softmax over the part's keys.

    There are num_queries · G of them, filled up to whole panels.
    """
    start, end, seq, query = part[PART_START], part[PART_END], job[SEQ], job[QUERY]
    num_queries, kv_head = job[NUM_QUERIES], job[KV_HEAD]
    _, keys, values, _, _, _, _, places = scratch
    last_query = problem.query_starts[seq + 1]
    position = np.int64(problem.context_lens[seq]) - last_query + query
    rows = num_queries * problem.group
    padded = round_up(rows, PANEL)
    _load_queries(problem, pool.dim, query, num_queries, position, kv_head, scratch)
    clear(state, state_row, padded)
    for first in range(start, end, TILE):
        count = min(TILE, end - first)
        find_tokens(pool, problem, seq, first, count, places)
        key_row = 0 if pool.is_latent else 2 * kv_head
        stage_rows(pool, places, count, key_row, keys, pool.dim)
        # the product takes whole groups of rows
        keys[count * pool.dim : round_up(count, PANEL_ROWS) * pool.dim] = 0
        if not pool.is_latent:
            stage_rows(pool, places, count, key_row + 1, values, state.width)
        for panel in range(padded // PANEL):
            _attend_panel(
                pool, problem, panel, rows - 1, first, count, scratch, state, state_row
            )

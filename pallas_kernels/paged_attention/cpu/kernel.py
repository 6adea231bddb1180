"""The CPU kernel: cuts a step into parts, which threads take one after the other.

A job is a query (all heads, `decode`) or a tile of queries (one kv head,
`prefill`). Jobs with many keys are split into parts, so that a lone long sequence
keeps all cores busy and unequal ones end together; the thread that ends a job's last
part merges them, always in the order of the keys. So results do not depend on which
thread was faster.
"""

import numpy as np

from pallas_kernels.numba_ffi import (
    ARGUMENTS,
    FRAME_WORDS,
    RESULTS,
    array_at,
    buffer_array,
    buffer_dims,
    call_from_table,
    compiled,
    fetch_add,
    keep,
    must_execute,
    prange,
    words,
)
from pallas_kernels.paged_attention.cpu.decode import (
    MAX_GROUP,
    decode_part,
    decode_scratch,
)
from pallas_kernels.paged_attention.cpu.prefill import (
    queries_per_tile,
    tile_part,
    tile_scratch,
)
from pallas_kernels.paged_attention.cpu.vectors import FP8_SHIFT, LANES, PANEL
from pallas_kernels.paged_attention.cpu.work import (
    ALL_HEADS,
    END,
    JOB,
    JOB_FIELDS,
    KV_HEAD,
    NUM_QUERIES,
    PART_END,
    PART_FIELDS,
    PART_ROW,
    PART_START,
    PARTS,
    QUERY,
    SEQ,
    START,
    STATE_ROW,
    TILE,
    Pool,
    Problem,
    Softmax,
    finish,
    first_seen,
    make_softmax,
    merge,
    round_up,
)

PARTS_PER_THREAD = 8
MIN_PART = 2 * TILE  # keys
MIN_PARALLEL_COST = 1 << 19  # products of a step below which one thread does it all


@compiled
def _is_streamed(pool, problem, num_queries):
    """Whether a run of queries goes to `decode`."""
    whole = pool.dim % LANES == 0 and pool.value_dim % LANES == 0
    return num_queries == 1 and problem.group <= MAX_GROUP and whole


@compiled
def _job_rows(problem, job):
    """Rows of softmax state that a job, or a part of it, needs."""
    if job[KV_HEAD] == ALL_HEADS:
        return problem.num_heads
    return round_up(job[NUM_QUERIES] * problem.group, PANEL)


@compiled
def _is_within_bounds(pool, problem):
    """Whether the arrays hold all that the numbers say, table entries taken on trust."""
    tokens = len(problem.q) // (problem.num_heads * pool.dim)
    if pool.start < 0 or pool.start >= len(pool.numbers):  # of the layer
        return False
    if problem.num_seqs < 0 or problem.num_seqs > len(problem.context_lens):
        return False
    for seq in range(problem.num_seqs):
        begin, end = problem.query_starts[seq], problem.query_starts[seq + 1]
        context = np.int64(problem.context_lens[seq])
        if begin < 0 or end < begin or end > tokens:
            return False
        if context < 0 or context > problem.table_width * pool.block_size:
            return False
        if context and end - begin > context:
            return False
    return True


@compiled
def _make_jobs(pool, problem):
    """Jobs [count, JOB_FIELDS]; those with the most keys of a sequence come first."""
    tile = queries_per_tile(pool, problem)
    kv_heads = problem.num_heads // problem.group
    count = 0
    for seq in range(problem.num_seqs):
        queries = problem.query_starts[seq + 1] - problem.query_starts[seq]
        count += (queries + tile - 1) // tile * kv_heads
    jobs = np.zeros((count, JOB_FIELDS), np.int64)
    count = 0
    for seq in range(problem.num_seqs):
        begin = np.int64(problem.query_starts[seq])
        queries = problem.query_starts[seq + 1] - begin
        context = np.int64(problem.context_lens[seq])
        if context == 0:
            continue
        streamed = _is_streamed(pool, problem, queries)
        for tile_index in range((queries + tile - 1) // tile - 1, -1, -1):
            first = tile_index * tile
            num = min(tile, queries - first)
            position = context - queries + first
            for kv_head in range(1 if streamed else kv_heads):
                job = jobs[count]
                job[SEQ], job[QUERY], job[NUM_QUERIES] = seq, begin + first, num
                job[KV_HEAD] = ALL_HEADS if streamed else kv_head
                job[START] = first_seen(problem, position)
                job[END] = position + num
                count += 1
    return jobs[:count]


@compiled
def _cost(problem, job):
    """Products of query rows and keys; reading a row for few counts as for some more."""
    keys = job[END] - job[START]
    if job[KV_HEAD] == ALL_HEADS:
        return keys * (problem.num_heads + 4 * (problem.num_heads // problem.group))
    return keys * _job_rows(problem, job)


@compiled
def _make_parts(problem, jobs, total, threads):
    """Parts [count, PART_FIELDS] and the rows that the states of split jobs need."""
    largest = max(1, total // (threads * PARTS_PER_THREAD))
    count, rows = 0, 0
    for job in jobs:
        job[PARTS] = 1
        if threads > 1:
            most = max(1, (job[END] - job[START]) // MIN_PART)
            job[PARTS] = min(most, (_cost(problem, job) + largest - 1) // largest)
        count += job[PARTS]
    parts = np.zeros((count, PART_FIELDS), np.int64)
    count = 0
    for index in range(len(jobs)):
        job = jobs[index]
        keys = job[END] - job[START]
        step = round_up((keys + job[PARTS] - 1) // job[PARTS], TILE)
        job[PARTS] = (keys + step - 1) // step
        job[STATE_ROW] = rows
        for i in range(job[PARTS]):
            part = parts[count]
            part[JOB], part[PART_ROW] = index, rows
            part[PART_START] = job[START] + i * step
            part[PART_END] = min(part[PART_START] + step, job[END])
            count += 1
            if job[PARTS] > 1:
                rows += _job_rows(problem, job)
    return parts[:count], rows


@compiled
def _finish_job(pool, problem, job, state, first, out, lse):
    """Writes the rows of the result."""
    if job[KV_HEAD] == ALL_HEADS:
        for head in range(problem.num_heads):
            finish(state, first + head, problem, job[QUERY], head, pool.value_dim, out, lse)
        return
    for row in range(job[NUM_QUERIES] * problem.group):
        query = job[QUERY] + row // problem.group
        head = job[KV_HEAD] * problem.group + row % problem.group
        finish(state, first + row, problem, query, head, pool.value_dim, out, lse)


# what `integers` of the call holds
NUM_INTEGERS = 11
(
    LAYER, WINDOW, CHUNK_SIZE, NUM_SEQS, THREADS, KV_HEADS, HAS_SINKS, IS_QUANTIZED,
    IS_LATENT, IS_FP8, WORKER,
) = range(NUM_INTEGERS)  # fmt: skip


@compiled
def _read_problem(address):
    """The arguments of the call, and the arrays of its results."""
    frame = words(address, FRAME_WORDS)
    args = frame[ARGUMENTS]
    integers = buffer_array(args, 7, np.int32)
    floats = buffer_array(args, 8, np.float32)
    q_dims, table_dims = buffer_dims(args, 0), buffer_dims(args, 3)
    return Problem(
        buffer_array(args, 0, np.float32),
        q_dims[1],
        q_dims[1] // np.int64(integers[KV_HEADS]),
        buffer_array(args, 3, np.int32),
        table_dims[1],
        buffer_array(args, 4, np.int32),
        buffer_array(args, 5, np.int32),
        np.int64(integers[NUM_SEQS]),
        buffer_array(args, 6, np.float32),
        np.int64(integers[HAS_SINKS]),
        floats[0],
        floats[1],
        np.int64(integers[WINDOW]),
        np.int64(integers[CHUNK_SIZE]),
        np.int64(integers[THREADS]),
    )


@compiled
def _read_pool(address, dtype):
    frame = words(address, FRAME_WORDS)
    args = frame[ARGUMENTS]
    integers = buffer_array(args, 7, np.int32)
    dims = buffer_dims(args, 1)
    rows = np.int64(1) if integers[IS_LATENT] else dims[3]
    dim = dims[len(dims) - 1]
    return Pool(
        buffer_array(args, 1, dtype),
        buffer_array(args, 2, np.float32),
        np.int64(integers[LAYER]) * dims[1] * dims[2] * rows * dim,
        dims[2],
        rows,
        dim,
        buffer_dims(frame[RESULTS], 0)[2],
        np.int64(integers[IS_QUANTIZED]),
        np.int64(integers[IS_LATENT]),
        np.float32(FP8_SHIFT if integers[IS_FP8] else 1.0),
    )


# what a step's plan holds, which all threads share: addresses and sizes
PLAN_WORDS = 11
(
    JOBS, NUM_JOBS, ALL_PARTS, NUM_PARTS, COUNTERS, SUMS, LARGEST_LOGITS, TOTALS, ROWS,
    MAX_ROWS, TILE_ROWS,
) = range(PLAN_WORDS)  # fmt: skip


def make_worker(dtype, version):
    """The function that threads run, for pools whose numbers Numba calls `dtype`."""

    def worker(address, plan_address):
        """Takes parts until none is left.

        Counter 0 is the next part, counter 1 + j how many parts of job j are done.

        Returns:
          1 at its end. Numba prints an exception, and lets the function return 0.
        """
        if version == 0:  # it never is: see `register`
            return 0
        pool, problem = _read_pool(address, dtype), _read_problem(address)
        results = words(address, FRAME_WORDS)[RESULTS]
        out = buffer_array(results, 0, np.float32)
        lse = buffer_array(results, 1, np.float32)
        plan = words(plan_address, PLAN_WORDS)
        jobs = words(plan[JOBS], plan[NUM_JOBS] * JOB_FIELDS)
        jobs = jobs.reshape((plan[NUM_JOBS], JOB_FIELDS))
        parts = words(plan[ALL_PARTS], plan[NUM_PARTS] * PART_FIELDS)
        parts = parts.reshape((plan[NUM_PARTS], PART_FIELDS))
        counters = words(plan[COUNTERS], 1 + plan[NUM_JOBS])
        width = round_up(pool.value_dim, PANEL)
        shared = Softmax(
            array_at(plan[SUMS], plan[ROWS] * width, np.float32),
            array_at(plan[LARGEST_LOGITS], plan[ROWS], np.float32),
            array_at(plan[TOTALS], plan[ROWS], np.float32),
            width,
        )
        own = make_softmax(plan[MAX_ROWS], pool.value_dim)
        streaming = decode_scratch(pool, problem)
        tiling = tile_scratch(pool, problem, plan[TILE_ROWS])
        while True:
            index = fetch_add(counters, 0, 1)
            if index >= plan[NUM_PARTS]:
                return 1
            part = parts[index]
            job = jobs[part[JOB]]
            is_split = job[PARTS] > 1
            state, row = (shared, part[PART_ROW]) if is_split else (own, np.int64(0))
            if job[KV_HEAD] == ALL_HEADS:
                decode_part(pool, problem, job, part, streaming, state, row)
            else:
                tile_part(pool, problem, job, part, tiling, state, row)
            if is_split:
                if fetch_add(counters, 1 + part[JOB], 1) < job[PARTS] - 1:
                    continue
                row = job[STATE_ROW]
                merge(state, row, _job_rows(problem, job), job[PARTS])
            _finish_job(pool, problem, job, state, row, out, lse)

    return worker


@compiled(parallel=True)
def _run(worker, address, plan, threads):
    """How many of the threads came to their end."""
    ended = 0
    for _ in prange(threads):
        ended += call_from_table(worker, address, plan.ctypes.data)
    keep(plan)
    return ended


@compiled
def _fill_results(address, number, log_sum):
    results = words(address, FRAME_WORDS)[RESULTS]
    buffer_array(results, 0, np.float32)[:] = number
    buffer_array(results, 1, np.float32)[:] = log_sum


def make_handler(version):
    """The foreign function; the arithmetic is that of the worker it is told to use.

    XLA does not learn of an exception here or in a worker (Numba prints it, as when
    memory is short): results are NaN then, and where arguments break the contract.
    """

    def handler(address):
        if not must_execute(address) or version == 0:  # it never is: see `register`
            return 0
        _fill_results(address, np.nan, np.nan)  # stays if the next lines raise
        problem = _read_problem(address)
        pool = _read_pool(address, np.uint8)  # for its sizes
        if not _is_within_bounds(pool, problem):
            return 0
        jobs = _make_jobs(pool, problem)
        total, max_rows, tile_rows = 0, 0, 0
        for index in range(len(jobs)):
            total += _cost(problem, jobs[index])
            rows = _job_rows(problem, jobs[index])
            max_rows = max(max_rows, rows)
            if jobs[index][KV_HEAD] != ALL_HEADS:
                tile_rows = max(tile_rows, rows)
        threads = problem.threads
        if total * pool.dim < MIN_PARALLEL_COST:
            threads = 1
        parts, rows = _make_parts(problem, jobs, total, threads)
        shared = make_softmax(rows, pool.value_dim)
        counters = np.zeros(1 + len(jobs), np.int64)
        plan = np.empty(PLAN_WORDS, np.int64)
        plan[JOBS], plan[NUM_JOBS] = jobs.ctypes.data, len(jobs)
        plan[ALL_PARTS], plan[NUM_PARTS] = parts.ctypes.data, len(parts)
        plan[COUNTERS] = counters.ctypes.data
        plan[SUMS], plan[LARGEST_LOGITS] = (
            shared.sums.ctypes.data,
            shared.largest.ctypes.data,
        )
        plan[TOTALS], plan[ROWS] = shared.total.ctypes.data, rows
        plan[MAX_ROWS], plan[TILE_ROWS] = max_rows, tile_rows
        args = words(address, FRAME_WORDS)[ARGUMENTS]
        worker = np.int64(buffer_array(args, 7, np.int32)[WORKER])
        threads = min(threads, len(parts))
        _fill_results(address, 0, -np.inf)  # of queries that see no key
        if _run(worker, address, plan, threads) != threads:
            _fill_results(address, np.nan, np.nan)
        keep((jobs, parts, counters, shared))
        return 0

    return handler

"""Vector routines of the CPU kernel, which Numba inlines.

Arrays are flat. `at` and `*_at` are where a routine starts in one, `*_row` the distance
of rows, and `vectors` counts LANES numbers.
"""

import functools

from llvmlite import ir
from numba import types
from numba.core import cgutils

from pallas_kernels.paged_attention.cpu.llvm import (
    FP8_SHIFT,
    I32,
    I64,
    INTEGERS,
    LANES,
    LARGEST,
    ROWS_AT_ONCE,
    add_product,
    exp,
    fma,
    fold,
    for_each_count,
    get,
    item,
    make_sums,
    maximum,
    put,
    read,
    routine,
    scaled,
    splat,
    spread,
    sums_of_four,
    tanh,
)

__all__ = [
    "FP8_SHIFT",
    "LANES",
    "LARGEST",
    "ROWS_AT_ONCE",
    "add_weighted",
    "cap_logits",
    "convert_row",
    "dot_rows",
    "exponentials",
    "largest",
    "mask_columns",
    "multiply",
    "multiply_panel",
    "multiply_rows",
    "prefetch",
    "softmax_columns",
]

WIDTH = 4  # vectors of a row of V whose sums are in registers at once
PREFETCH_LOCALITY = 1  # not to the first level, which can wait for few lines at once
LINE = 64  # bytes that memory hands over at once
PANEL = 2 * LANES  # columns of `multiply_panel`, whose sums stay in registers
PANEL_ROWS = 8


def ask_for(b, pool, start, count):
    """Asks for `count` numbers of the pool before they are needed."""
    address = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [address] + 3 * [I32])
    function = cgutils.get_or_insert_function(b.module, kind, "llvm.prefetch.p0")
    first = b.bitcast(b.gep(pool.base, [start]), address)
    for byte in range(0, count * pool.dtype.bitwidth // 8, LINE):
        line = b.gep(first, [I64(byte)])
        b.call(function, [line, I32(0), I32(PREFETCH_LOCALITY), I32(1)])


def for_each_panel(b, vectors, emit):
    """Runs the code of `emit(size, start)`: panels of WIDTH vectors, then of one."""
    wide = b.sdiv(vectors, I64(WIDTH))
    with cgutils.for_range(b, wide) as loop:
        emit(WIDTH, scaled(b, loop.index, WIDTH * LANES))
    with cgutils.for_range(b, b.srem(vectors, I64(WIDTH))) as loop:
        emit(1, scaled(b, b.add(loop.index, scaled(b, wide, WIDTH)), LANES))


@routine()
def prefetch(b, pool, start, count):
    """Asks for `count` numbers, a multiple of LANES, before they are needed."""
    with cgutils.for_range(b, b.udiv(count, I64(LANES))) as loop:
        ask_for(b, pool, scaled(b, loop.index, LANES, start), LANES)


@routine()
def dot_rows(
    b,
    rows,
    pool,
    starts,
    coming,
    first,
    shift,
    q,
    q_at,
    q_row,
    vectors,
    logits,
    at,
    logit_row,
):
    """Products of `rows` rows of q with four rows of the pool, from `starts[first]`.

    Meanwhile asks for the same rows of the tokens that start at `coming`.
    """

    def steps(sums, bases, later, size, start):
        for i in range(size):
            step = b.add(start, I64(LANES * i))
            # asks are spread over the steps, a token in each, where there are four
            for place in later[i : i + 1] if size == len(later) else later:
                ask_for(b, pool, b.add(place, start), LANES * size)
            keys = [read(b, pool, b.add(base, step)) for base in bases]
            for row in range(len(sums) // 4):
                query = get(b, q, b.add(b.add(q_at, step), scaled(b, q_row, row)))
                for token, key in enumerate(keys):
                    add_product(b, sums[4 * row + token], query, key)

    def emit(rows):
        places = [b.add(first, I64(token)) for token in range(4)]
        bases, later = (
            [b.add(item(b, x, place), shift) for place in places] for x in (starts, coming)
        )
        sums = make_sums(b, 4 * rows)
        for_each_panel(b, vectors, functools.partial(steps, sums, bases, later))
        for row in range(rows):
            four = sums_of_four(b, [b.load(x) for x in sums[4 * row : 4 * row + 4]])
            put(b, logits, b.add(b.add(at, first), scaled(b, logit_row, row)), four)

    for_each_count(b, rows, emit)


@routine()
def add_weighted(
    b,
    rows,
    pool,
    starts,
    coming,
    count,
    shift,
    weights,
    at,
    weight_row,
    sums,
    sum_at,
    width,
    vectors,
):
    """Adds `count` rows of the pool, weighted by `rows` rows of weights, to sums.

    Rows of sums are `width` apart. `coming` is as for `dot_rows`.
    """

    def panel(rows, size, start):
        targets = [
            b.add(scaled(b, width, row, b.add(sum_at, start)), I64(LANES * i))
            for row in range(rows)
            for i in range(size)
        ]
        places = make_sums(b, len(targets))
        for place, target in zip(places, targets, strict=True):
            b.store(get(b, sums, target), place)
        with cgutils.for_range(b, count) as loop:
            base = b.add(b.add(item(b, starts, loop.index), shift), start)
            later = b.add(b.add(item(b, coming, loop.index), shift), start)
            ask_for(b, pool, later, LANES * size)
            values = [read(b, pool, b.add(base, I64(LANES * i))) for i in range(size)]
            for row in range(rows):
                index = scaled(b, weight_row, row, b.add(at, loop.index))
                weight = spread(b, item(b, weights, index))
                for i, value in enumerate(values):
                    add_product(b, places[row * size + i], weight, value)
        for place, target in zip(places, targets, strict=True):
            put(b, sums, target, b.load(place))

    def emit(rows):
        for_each_panel(b, vectors, functools.partial(panel, rows))

    for_each_count(b, rows, emit)


@routine(returns=types.float32)
def largest(b, x, at, vectors):
    """Of a row."""
    (place,) = make_sums(b, 1)
    b.store(splat(-LARGEST), place)
    with cgutils.for_range(b, vectors) as loop:
        numbers = get(b, x, scaled(b, loop.index, LANES, at))
        b.store(maximum(b, numbers, b.load(place)), place)
    return fold(b, b.load(place), maximum)


@routine(returns=types.float32)
def exponentials(b, x, at, vectors, base):
    """Turns a row into e^(x - base); returns its sum. `base` is ≥ all of the row."""
    (total,) = make_sums(b, 1)
    base = spread(b, base)
    with cgutils.for_range(b, vectors) as loop:
        index = scaled(b, loop.index, LANES, at)
        power = exp(b, b.fsub(get(b, x, index), base))
        put(b, x, index, power)
        b.store(b.fadd(b.load(total), power), total)
    return fold(b, b.load(total), lambda b, x, y: b.fadd(x, y))


@routine()
def cap_logits(b, x, at, vectors, cap):
    """cap · tanh(x / cap)."""
    cap = spread(b, cap)
    with cgutils.for_range(b, vectors) as loop:
        index = scaled(b, loop.index, LANES, at)
        ratio = b.fdiv(get(b, x, index), cap)
        put(b, x, index, b.fmul(cap, tanh(b, ratio)))


@routine()
def multiply(b, x, at, vectors, factor):
    """A row by one number."""
    factor = spread(b, factor)
    with cgutils.for_range(b, vectors) as loop:
        index = scaled(b, loop.index, LANES, at)
        put(b, x, index, b.fmul(get(b, x, index), factor))


@routine()
def multiply_rows(b, x, at, vectors, y, y_at):
    """A row by another, number by number."""
    with cgutils.for_range(b, vectors) as loop:
        step = scaled(b, loop.index, LANES)
        index = b.add(step, at)
        put(b, x, index, b.fmul(get(b, x, index), get(b, y, b.add(step, y_at))))


@routine()
def convert_row(b, pool, start, count, factor, out, out_at):
    """`count` numbers of the pool, times a factor, as float32."""
    for lanes in (LANES, 1):
        whole = b.sdiv(count, I64(LANES))
        done = I64(0) if lanes == LANES else b.mul(whole, I64(LANES))
        with cgutils.for_range(b, whole if lanes == LANES else b.sub(count, done)) as loop:
            step = scaled(b, loop.index, lanes, done)
            numbers = read(b, pool, b.add(start, step), lanes)
            factors = b.insert_element(splat(0.0, numbers.type), factor, I32(0))
            zeros = splat(0, ir.VectorType(I32, lanes))
            factors = b.shuffle_vector(factors, factors, zeros)
            put(b, out, b.add(out_at, step), b.fmul(numbers, factors))


@routine(literals=1)
def multiply_panel(
    b,
    is_sum,
    x,
    x_at,
    x_row,
    x_step,
    y,
    y_at,
    y_row,
    steps,
    out,
    out_at,
    out_row,
    decay,
    d_at,
):
    """PANEL_ROWS × PANEL numbers of a matrix product x · y.

    x[i, k] lies at x_at + i · x_row + k · x_step and y[k, :] at y_at + k · y_row. The
    result replaces `out`, or, if `is_sum`, joins `out` with its rows times `decay`.
    """
    places = [make_sums(b, PANEL // LANES) for _ in range(PANEL_ROWS)]
    targets = [
        [
            b.add(scaled(b, out_row, i, out_at), I64(LANES * j))
            for j in range(PANEL // LANES)
        ]
        for i in range(PANEL_ROWS)
    ]
    if is_sum:
        for i, row in enumerate(targets):
            factor = spread(b, item(b, decay, b.add(d_at, I64(i))))
            for j, target in enumerate(row):
                b.store(b.fmul(get(b, out, target), factor), places[i][j])
    with cgutils.for_range(b, steps) as loop:
        y_index = b.add(y_at, b.mul(loop.index, y_row))
        columns = [get(b, y, b.add(y_index, I64(LANES * j))) for j in range(PANEL // LANES)]
        x_index = b.add(x_at, b.mul(loop.index, x_step))
        for i in range(PANEL_ROWS):
            number = spread(b, item(b, x, scaled(b, x_row, i, x_index)))
            for j, column in enumerate(columns):
                add_product(b, places[i][j], number, column)
    for i, row in enumerate(targets):
        for j, target in enumerate(row):
            put(b, out, target, b.load(places[i][j]))


@routine()
def softmax_columns(b, x, at, count, row, largest, total, r_at, decay, d_at):
    """One step of the online softmax down LANES columns of `count` logits.

    They become e^(x - largest); `decay` is what earlier sums are to be multiplied by.
    """
    before = get(b, largest, r_at)
    (top, added) = make_sums(b, 2)
    b.store(before, top)
    with cgutils.for_range(b, count) as loop:
        numbers = get(b, x, b.add(at, b.mul(loop.index, row)))
        b.store(maximum(b, numbers, b.load(top)), top)
    base = b.load(top)
    with cgutils.for_range(b, count) as loop:
        index = b.add(at, b.mul(loop.index, row))
        power = exp(b, b.fsub(get(b, x, index), base))
        put(b, x, index, power)
        b.store(b.fadd(b.load(added), power), added)
    factor = exp(b, b.fsub(before, base))
    put(b, largest, r_at, base)
    put(b, decay, d_at, factor)
    put(b, total, r_at, fma(b, get(b, total, r_at), factor, b.load(added)))


@routine()
def mask_columns(b, x, at, count, row, key, low, high, r_at):
    """-inf where the key of a row, from `key` on, is outside a column's [low, high]."""
    ends = [get(b, ends, r_at, INTEGERS) for ends in (low, high)]
    with cgutils.for_range(b, count) as loop:
        index = b.add(at, b.mul(loop.index, row))
        position = spread(b, b.trunc(b.add(key, loop.index), I32))
        seen = b.and_(
            b.icmp_signed(">=", position, ends[0]),
            b.icmp_signed("<=", position, ends[1]),
        )
        numbers = b.select(seen, get(b, x, index), splat(float("-inf")))
        put(b, x, index, numbers)

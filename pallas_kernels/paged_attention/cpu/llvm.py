"""LLVM code for vectors, from which `vectors` makes its routines.

Vectors have 16 float32 lanes; LLVM splits them where the machine's are shorter. Numbers
of the pool (`float32`; `uint16`: bfloat16 bits; `int8`; `uint8`: float8_e4m3fn bits)
become float32 in registers. `b` is always the builder.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
ROWS_AT_ONCE = 4  # query rows that share a load of K or V in the routines for few rows
FP8_SHIFT = 2.0**8  # float8_e4m3fn read as float16 is too small by this factor

F32, I32, I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
VECTOR, INTEGERS = ir.VectorType(F32, LANES), ir.VectorType(I32, LANES)
LARGEST = 3e38  # stands for infinity where a difference of two must not be NaN

# 2^f on [-1/2, 1/2], least relative error: 1.9e-9
EXP2 = (
    1.0,
    0.6931471824645996,
    0.24022646248340607,
    0.05550328642129898,
    0.009618489071726799,
    0.0013399930903688073,
    0.0001534580223960802,
)
LOG2_E, LOG2_E_REST = 1.4426950216293335, 1.9259629911266175e-08
SMALLEST_EXPONENT = -87.0  # e^x below it counts as 0
ROUNDING = 1.5 * 2.0**23  # added, it leaves the nearest integer in the low bits
# tanh(x)/x in powers of x² near 0, where 1 - 2/(e^2x + 1) would cancel
TANH_SERIES = (1.0, -1 / 3, 2 / 15, -17 / 315, 62 / 2835)
TANH_SERIES_END = 0.35


class Numbers(NamedTuple):
    """An array in a routine: where it starts and what it holds (a type of Numba)."""

    base: Any
    dtype: Any


def routine(literals: int = 0, returns: Any = types.void) -> Callable[[Callable], Any]:
    """Makes `emit(builder, *arguments)` callable from compiled functions.

    The first `literals` arguments are known while compiling and reach it as numbers,
    arrays as `Numbers`, others as values of LLVM: integers of 64 bits, or float32.
    """

    def decorate(emit):
        def define(typingctx, *given):
            wanted: tuple[Any, ...] = tuple(
                x
                if position < literals or isinstance(x, types.Array)
                else types.float32
                if isinstance(x, types.Float)
                else types.int64
                for position, x in enumerate(given)
            )

            def codegen(context, builder, signature, args):
                values = list(args)
                for position, x in enumerate(wanted):
                    if position < literals:
                        values[position] = x.literal_value
                    elif isinstance(x, types.Array):
                        array = context.make_array(x)(context, builder, args[position])
                        values[position] = Numbers(array.data, x.dtype)
                result = emit(builder, *values)
                return context.get_dummy_value() if returns is types.void else result

            return returns(*wanted), codegen

        define.__name__ = emit.__name__
        # Numba binds arguments by name; the builder's place is the typing context's
        define.__signature__ = inspect.signature(emit)  # type: ignore[attr-defined]
        return intrinsic(prefer_literal=True)(define)

    return decorate


def splat(number, vector=VECTOR):
    return ir.Constant(vector, [ir.Constant(vector.element, number)] * vector.count)


def fma(b, x, y, z):
    """x · y + z, rounded once."""
    kind = ir.FunctionType(VECTOR, [VECTOR] * 3)
    function = cgutils.get_or_insert_function(b.module, kind, f"llvm.fma.v{LANES}f32")
    return b.call(function, [x, y, z])


def spread(b, scalar):
    """The scalar in every lane."""
    vector = ir.VectorType(scalar.type, LANES)
    start = b.insert_element(ir.Constant(vector, ir.Undefined), scalar, I32(0))
    zeros = ir.Constant(INTEGERS, [I32(0)] * LANES)
    return b.shuffle_vector(start, ir.Constant(vector, ir.Undefined), zeros)


def place_of(b, numbers, index, vector):
    return b.bitcast(b.gep(numbers.base, [index]), vector.as_pointer())


def get(b, numbers, index, vector=VECTOR):
    """Loads a vector that is aligned no better than its elements."""
    value = b.load(place_of(b, numbers, index, vector))
    value.align = numbers.dtype.bitwidth // 8
    return value


def put(b, numbers, index, value):
    store = b.store(value, place_of(b, numbers, index, value.type))
    store.align = numbers.dtype.bitwidth // 8


def item(b, numbers, index):
    return b.load(b.gep(numbers.base, [index]))


def read(b, pool, index, lanes=LANES):
    """Numbers of the pool as float32; of float8 without `FP8_SHIFT`."""
    floats, dtype = ir.VectorType(F32, lanes), pool.dtype
    if dtype == types.float32:
        return get(b, pool, index, floats)
    integers = ir.VectorType(I32, lanes)
    if dtype == types.uint16:
        bits = b.zext(get(b, pool, index, ir.VectorType(ir.IntType(16), lanes)), integers)
        return b.bitcast(b.shl(bits, splat(16, integers)), floats)
    bits = get(b, pool, index, ir.VectorType(ir.IntType(8), lanes))
    if dtype == types.int8:
        return b.sitofp(bits, floats)
    # sign, 4 exponent and 3 mantissa bits, moved to where float16 has them
    halves = ir.VectorType(ir.IntType(16), lanes)
    bits = b.shl(b.sext(bits, halves), splat(7, halves))
    bits = b.and_(bits, splat(0xBFFF, halves))
    return b.fpext(b.bitcast(bits, ir.VectorType(ir.HalfType(), lanes)), floats)


def exp(b, x):
    """e^x for x ≤ 0, with a relative error below 1.5e-7."""
    shifted = fma(b, x, splat(LOG2_E), splat(ROUNDING))
    whole = b.fsub(shifted, splat(ROUNDING))
    fraction = fma(b, x, splat(LOG2_E), b.fneg(whole))
    fraction = fma(b, x, splat(LOG2_E_REST), fraction)
    power = splat(EXP2[-1])
    for coefficient in EXP2[-2::-1]:
        power = fma(b, power, fraction, splat(coefficient))
    exponent = b.shl(b.bitcast(shifted, INTEGERS), splat(23, INTEGERS))
    result = b.bitcast(b.add(b.bitcast(power, INTEGERS), exponent), VECTOR)
    # takes -inf, whose fraction is NaN, and lets NaN pass
    is_small = b.fcmp_ordered("<", x, splat(SMALLEST_EXPONENT))
    return b.select(is_small, splat(0.0), result)


def tanh(b, x):
    sign_bit = splat(-(2**31), INTEGERS)
    bits = b.bitcast(x, INTEGERS)
    size = b.bitcast(b.and_(bits, b.not_(sign_bit)), VECTOR)
    power = exp(b, b.fmul(size, splat(-2.0)))
    large = b.fdiv(b.fsub(splat(1.0), power), b.fadd(splat(1.0), power))
    square = b.fmul(size, size)
    series = splat(TANH_SERIES[-1])
    for coefficient in TANH_SERIES[-2::-1]:
        series = fma(b, series, square, splat(coefficient))
    is_small = b.fcmp_ordered("<", size, splat(TANH_SERIES_END))
    result = b.select(is_small, b.fmul(size, series), large)
    sign = b.and_(bits, sign_bit)
    return b.bitcast(b.or_(b.bitcast(result, INTEGERS), sign), VECTOR)


def maximum(b, x, y):
    return b.select(b.fcmp_ordered(">", x, y), x, y)


def fold(b, vector, combine):
    """One number from all lanes."""
    lanes = LANES
    while lanes > 1:
        lanes //= 2
        low, high = (
            b.shuffle_vector(vector, vector, indices(range(start, start + lanes)))
            for start in (0, lanes)
        )
        vector = combine(b, low, high)
    return b.extract_element(vector, I32(0))


def indices(numbers):
    numbers = list(numbers)
    return ir.Constant(ir.VectorType(I32, len(numbers)), [I32(n) for n in numbers])


def sums_of_four(b, vectors):
    """The sum over the lanes of each of four vectors, as a vector of four."""

    def halves(x, y, width):  # of each run of `width` lanes, x's runs before y's
        lanes = range(x.type.count if y is None else 2 * x.type.count)
        low = [lane for lane in lanes if lane % width < width // 2]
        high = [lane for lane in lanes if lane % width >= width // 2]
        other = x if y is None else y
        low, high = (b.shuffle_vector(x, other, indices(run)) for run in (low, high))
        return b.fadd(low, high)

    first = halves(vectors[0], vectors[1], 16)
    second = halves(vectors[2], vectors[3], 16)
    return halves(halves(halves(first, second, 8), None, 4), None, 2)


def make_sums(b, count, vector=VECTOR):
    """Places for sums, which LLVM keeps in registers; all 0."""
    places = [cgutils.alloca_once(b, vector) for _ in range(count)]
    for place in places:
        b.store(splat(0.0, vector), place)
    return places


def add_product(b, place, x, y):
    b.store(fma(b, x, y, b.load(place)), place)


def scaled(b, index, step, offset=None):
    """index · step + offset."""
    product = b.mul(index, I64(step) if isinstance(step, int) else step)
    return product if offset is None else b.add(product, offset)


def for_each_count(b, rows, emit):
    """Runs the code that `emit` makes for the count of rows at hand, 1 to ROWS_AT_ONCE."""
    for count in range(1, ROWS_AT_ONCE + 1):
        with b.if_then(b.icmp_signed("==", rows, I64(count))):
            emit(count)

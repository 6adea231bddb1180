"""Copies rows of bytes from one array to another, or within one, in place on CPU.

XLA's own scatter converts a bfloat16 pool under jax 0.10.2; this one knows only bytes.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32, Shaped

from pallas_kernels.numba_ffi import (
    ARGUMENTS,
    FRAME_WORDS,
    RESULTS,
    buffer_array,
    buffer_dims,
    compiled,
    must_execute,
    num_threads,
    prange,
    register,
    source_version,
    words,
)

VERSION = source_version([__file__])
WORD_BYTES = 8
BYTES_PER_THREAD = 1 << 20  # below, waking a thread costs more than it copies

# what `integers` of the call holds
LAYERS, TARGET_LAYER, TARGET_ROWS, SOURCE_ROWS, ROW_BYTES, IS_WITHIN, THREADS = range(7)


@compiled
def _copy(target, source, to, taken, integers, first, step):
    """Every `step`-th row from `first` on, counted through all layers.

    Rows that an array does not have are left out.
    """
    count, row = len(to), np.int64(integers[ROW_BYTES])
    # LLVM does not vectorise a loop over bytes that may overlap: words are far faster
    num_words = row // WORD_BYTES if row % WORD_BYTES == 0 else 0
    target_words = words(target.ctypes.data, 1)
    source_words = words(source.ctypes.data, 1)
    for i in range(first, integers[LAYERS] * count, step):
        layer, index = i // count, i % count
        if not 0 <= to[index] < integers[TARGET_ROWS]:
            continue
        if not 0 <= taken[index] < integers[SOURCE_ROWS]:
            continue
        target_row = (integers[TARGET_LAYER] + layer) * np.int64(integers[TARGET_ROWS])
        start = (target_row + to[index]) * row
        source_start = (layer * np.int64(integers[SOURCE_ROWS]) + taken[index]) * row
        first_word, first_source = start // WORD_BYTES, source_start // WORD_BYTES
        for word in range(num_words):
            target_words[first_word + word] = source_words[first_source + word]
        for byte in range(num_words * WORD_BYTES, row):
            target[start + byte] = source[source_start + byte]


@compiled(parallel=True)
def _copy_in_parallel(target, source, to, taken, integers, threads):
    for thread in prange(threads):
        _copy(target, source, to, taken, integers, thread, threads)


def make_handler(version):
    """The foreign function."""

    def handler(address):
        if not must_execute(address) or version == 0:  # it never is: see `register`
            return 0
        frame = words(address, FRAME_WORDS)
        args = frame[ARGUMENTS]
        to, taken = buffer_array(args, 1, np.int32), buffer_array(args, 2, np.int32)
        integers = buffer_array(args, 3, np.int32)
        last_layer = np.int64(integers[TARGET_LAYER]) + integers[LAYERS] - 1
        num_layers = buffer_dims(frame[RESULTS], 0)[0]
        if integers[TARGET_LAYER] < 0 or last_layer >= num_layers:
            return 0  # as rows that an array does not have
        target = buffer_array(frame[RESULTS], 0, np.uint8)
        # flat arrays have as many entries as numbers: only their start is used
        source = target if integers[IS_WITHIN] else buffer_array(args, 0, np.uint8)
        size = np.int64(integers[LAYERS]) * len(to) * integers[ROW_BYTES]
        threads = min(np.int64(integers[THREADS]), size // BYTES_PER_THREAD)
        if threads > 1:
            _copy_in_parallel(target, source, to, taken, integers, threads)
        else:
            _copy(target, source, to, taken, integers, 0, 1)
        return 0

    return handler


def move_rows(
    target: Shaped[Array, "..."] | jax.ShapeDtypeStruct,
    source: Shaped[Array, "..."] | None,
    to: Int32[Array, "n"],
    taken: Int32[Array, "n"],
    *,
    row_axes: int,
    layer: Int32[Array, ""] | int | None = None,
) -> Shaped[Array, "..."]:
    """Copies rows `taken` of the source to rows `to` of the target, which is updated.

    An array is [L, rows..., *row], its last `row_axes` axes a row and those between
    them and the first counted as one.

    Args:
      target: in place if an array; if a shape, a new array whose every row is named.
      source: None for the target itself; then no row is both named in `to` and `taken`.
      layer: of the target, which alone is written, from a source without the first axis.
        Without it all layers are.
    """
    row_shape = target.shape[target.ndim - row_axes :]
    row_bytes = math.prod(row_shape) * target.dtype.itemsize
    within = source is None
    is_new = isinstance(target, jax.ShapeDtypeStruct)
    target_rows = math.prod(target.shape[1 : target.ndim - row_axes])
    if within:
        source_rows = target_rows
    elif layer is None:
        source_rows = math.prod(source.shape[1 : source.ndim - row_axes])
    else:
        source_rows = source.shape[0]
    integers = [
        target.shape[0] if layer is None else 1,
        0 if layer is None else layer,
        target_rows,
        source_rows,
        row_bytes,
        within,
        num_threads(),
    ]
    call = jax.ffi.ffi_call(
        register("move_rows", make_handler, VERSION),
        jax.ShapeDtypeStruct(target.shape, target.dtype),
        input_output_aliases=None if is_new else {4: 0},
    )
    return call(
        jnp.zeros(1, target.dtype) if within else source,
        to,
        taken,
        jnp.stack([jnp.asarray(x, jnp.int32) for x in integers]),
        *(() if is_new else (target,)),
    )

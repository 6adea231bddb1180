"""Calls Numba functions from jitted code, through XLA's typed foreign functions.

XLA hands a foreign function one `XLA_FFI_CallFrame` (jaxlib's xla/ffi/api/c_api.h). A
Numba callback reads it as an array of 64-bit words, so nothing but Python is needed. The
words used here are the same in every version of the interface from 0.1 on.
"""

import ctypes
import functools
import hashlib
import inspect
import pathlib
import threading
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

try:
    import numba
    import numba.extending
    from llvmlite import binding, ir
    from numba import carray, prange, types
    from numba.core import cgutils
except ImportError as error:
    raise ImportError(
        "The CPU kernels need Numba; install it with `pip install 'paxkv[cpu]'`, or "
        "choose implementation='xla'."
    ) from error

__all__ = [
    "array_at",
    "buffer_array",
    "buffer_dims",
    "call_from_table",
    "compiled",
    "fetch_add",
    "intrinsic",
    "keep",
    "must_execute",
    "num_threads",
    "prange",
    "put_in_table",
    "register",
    "source_version",
    "words",
]

# Whose annotations say less than they take.
intrinsic: Any = numba.extending.intrinsic
_njit: Any = numba.njit

# Words of the call frame, of a buffer, and of the answer to a question for metadata.
FRAME_WORDS = 22
EXTENSION, STAGE, ARGUMENTS, RESULTS = 1, 4, 9, 14
BUFFER_WORDS, DATA, RANK, DIMS = 6, 3, 4, 5
METADATA_WORDS, VERSION, TRAITS, STATE_TYPE = 6, 3, 4, 5
METADATA_EXTENSION = 1  # its type; the metadata's address is word 3 of the extension
EXECUTE_STAGE = 3
LOW_HALF = 0xFFFFFFFF
API_VERSION = 3 << 32  # minor above major: 0.3, which all of jax 0.10 to 0.12 accept

SAFE_LAYERS = ("omp", "tbb")
THREADING_REMEDY = (
    "Install OpenMP's runtime (libgomp) or `pip install tbb`, and set "
    "NUMBA_THREADING_LAYER=threadsafe."
)


# IEEE division by zero, and products fused with sums
OPTIONS: dict[str, Any] = dict(error_model="numpy", fastmath={"contract"}, nogil=True)


def compiled(function: Callable | None = None, **options: Any) -> Any:
    """`numba.njit` of the function itself: tests wrap functions to check their types."""
    if function is None:
        return functools.partial(compiled, **options)
    options = OPTIONS | dict(no_cpython_wrapper=True) | options
    return _njit(**options)(inspect.unwrap(function))


@intrinsic
def _pointer(typingctx, address, dtype):
    pointer = types.CPointer(dtype.dtype)

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_value_type(pointer))

    return pointer(types.int64, dtype), codegen


@intrinsic
def fetch_add(typingctx, counters, index, value):
    """Adds to an int64 of an array at once for all threads; returns what it was."""

    def codegen(context, builder, signature, args):
        array = context.make_array(counters)(context, builder, args[0])
        place = builder.gep(array.data, [args[1]])
        return builder.atomic_rmw("add", place, args[2], "seq_cst")

    return types.int64(counters, types.int64, types.int64), codegen


@intrinsic
def keep(typingctx, arrays):
    """Keeps arrays from being freed earlier, where only their addresses are used."""

    def codegen(context, builder, signature, args):
        return context.get_dummy_value()

    return types.void(arrays), codegen


@compiled
def array_at(address, count, dtype):
    """The numbers at an address."""
    return carray(_pointer(address, dtype), (count,))


@compiled
def words(address, count):
    """The 64-bit words at an address."""
    return array_at(address, count, np.int64)


@compiled
def buffer_dims(buffers, index):
    """The shape of an argument or result; `buffers` is the address of their list."""
    buffer = words(words(buffers, index + 1)[index], BUFFER_WORDS)
    return words(buffer[DIMS], buffer[RANK])


@compiled
def buffer_array(buffers, index, dtype):
    """The numbers of an argument or result, flat."""
    buffer = words(words(buffers, index + 1)[index], BUFFER_WORDS)
    size = 1
    for dim in words(buffer[DIMS], buffer[RANK]):
        size *= dim
    return array_at(buffer[DATA], size, dtype)


@compiled
def must_execute(address):
    """Answers a question for metadata; True if the call is to be carried out now."""
    frame = words(address, FRAME_WORDS)
    if frame[EXTENSION] != 0:
        extension = words(frame[EXTENSION], 4)
        if (extension[1] & LOW_HALF) == METADATA_EXTENSION:
            metadata = words(extension[3], METADATA_WORDS)
            metadata[VERSION] = API_VERSION
            metadata[TRAITS] = 0
            metadata[STATE_TYPE] = 0  # it keeps no state
            return False
    return (frame[STAGE] & LOW_HALF) == EXECUTE_STAGE


def source_version(files: Iterable[str | pathlib.Path]) -> int:
    """A positive number that names the content of a kernel's files and of this one."""
    digest = hashlib.sha256()
    for path in (*files, __file__):
        digest.update(pathlib.Path(path).read_bytes())
    return int.from_bytes(digest.digest()[:6], "big") + 1


@functools.cache
def num_threads() -> int:
    """Starts Numba's threads; raises unless several callers may use them at once."""
    count = numba.get_num_threads()
    layer = numba.threading_layer()
    if layer not in SAFE_LAYERS:
        raise ValueError(
            f"Numba's threading layer is {layer!r}, must be one of {SAFE_LAYERS}: XLA "
            f"calls kernels from several threads. {THREADING_REMEDY}"
        )
    return count


# Compiled functions that others call by their place in this table, and not by linking:
# Numba compiles what it links anew in each function that calls it.
_TABLE_NAME = "paxkv_functions"
_table = (ctypes.c_int64 * 8)()
binding.add_symbol(_TABLE_NAME, ctypes.addressof(_table))


@intrinsic
def call_from_table(typingctx, place, first, second):
    """Calls the function at a place of the table with two integers."""

    def codegen(context, builder, signature, args):
        word = ir.IntType(64)
        kind = ir.ArrayType(word, len(_table))
        table = cgutils.add_global_variable(builder.module, kind, _TABLE_NAME)
        table.linkage = "external"
        address = builder.load(builder.gep(table, [ir.IntType(32)(0), args[0]]))
        kind = ir.FunctionType(word, [word, word])
        function = builder.inttoptr(address, kind.as_pointer())
        return builder.call(function, args[1:])

    return types.int64(types.int64, types.int64, types.int64), codegen


_compiling = threading.RLock()
_callbacks: dict[Any, Any] = {}  # their code lives as long as they do


def _callback(key: Any, arguments: int, function: Callable) -> Any:
    """Compiles a function of addresses, or takes it from Numba's cache on disk."""
    num_threads()  # loads what parallel code links to
    signature = types.int64(*[types.int64] * arguments)
    callback = numba.cfunc(signature, cache=True, **OPTIONS)(inspect.unwrap(function))
    _callbacks[key] = callback
    return callback


def put_in_table(place: int, make: Callable, dtype: str, version: int) -> None:
    """Compiles `make(dtype, version)`, a function of two integers, for `call_from_table`.

    As for `register`, the function must close over `version`.
    """
    with _compiling:
        if place not in _callbacks:
            function = make(getattr(types, dtype), version)
            _table[place] = _callback(place, 2, function).address


def register(kernel: str, make_handler: Callable[[int], Callable], version: int) -> str:
    """Compiles a foreign function once; returns the name that XLA calls it by.

    Args:
      make_handler: makes the function, of the call frame's address, from `version`. It
        must close over it: Numba keeps what it compiled on disk, under the code and the
        closed-over values of that function alone, so only `version` tells it of changes
        in functions that are called.
      version: of `source_version`. Part of the name, so that a program kept in jax's
        compilation cache never meets another version of the kernel.
    """
    name = f"paxkv_{kernel}_{version:x}"
    with _compiling:
        if name not in _callbacks:
            address = _callback(name, 1, make_handler(version)).address
            function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address)
            capsule = jax.ffi.pycapsule(function)
            jax.ffi.register_ffi_target(name, capsule, platform="cpu", api_version=1)
    return name

"""How fast all threads together read memory: what decoding is measured against."""

import numpy as np

from pallas_kernels.numba_ffi import compiled, num_threads, prange
from pallas_kernels.paged_attention.cpu.vectors import LANES, largest

CHUNK = 1 << 14  # numbers


@compiled(parallel=True, no_cpython_wrapper=False)
def _read(numbers, chunks, found):
    for chunk in prange(chunks):
        found[chunk] = largest(numbers, chunk * CHUNK, CHUNK // LANES)


def read_all(numbers: np.ndarray) -> np.ndarray:
    """Reads flat float32 numbers once, but for a rest of less than a chunk."""
    num_threads()
    chunks = len(numbers) // CHUNK
    found = np.empty(chunks, np.float32)
    _read(numbers, chunks, found)
    return found

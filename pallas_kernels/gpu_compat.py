"""Differences of Pallas Mosaic GPU between the jax versions we support, 0.10.2 to 0.12.

`Ops` also stands between kernels and what an interpreter of these versions cannot run:
accumulators that begin with a value (all of them) and layouts of registers (0.10.2). What
a kernel computes is the same either way.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax.experimental.mosaic.gpu as mgpu
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.mosaic.gpu import utils
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, memref, vector
from jaxtyping import Array, Float32

Layout = Any  # of a plgpu array; its type is not public

# 0.10.2 has an interpreter, but neither exports it nor interprets layouts; its references
# have no transpose, and its loads take an index.
_IS_RECENT = hasattr(plgpu, "InterpretGPUParams")


def interpret_params() -> Any:
    """For `plgpu.kernel(interpret=...)`."""
    if _IS_RECENT:
        return plgpu.InterpretGPUParams()
    # the only module that has it before it became public
    from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams

    return InterpretGPUParams()


def _transposed(ref: Any) -> Any:
    if _IS_RECENT:
        return ref.T
    return plgpu.transpose_ref(ref, (1, 0))


def _read_every(context: Any, ref: Any, first: Any, *, step: int, layout: Layout) -> Any:
    """Each thread reads what its part of `layout` asks for. Pallas reads only what is
    contiguous, so this is written in the language below it."""
    del context
    index, layout = ir.IndexType.get(), layout.to_mgpu()
    flat = utils.memref_fold(ref, 0, 2)
    shape = (ir.MemRefType(flat.type).shape[0] // step,)
    registers = np.empty(layout.registers_shape(shape), dtype=object)
    first = arith.index_cast(index, first.registers.flat[0])

    def constant(value: int) -> Any:
        return arith.constant(index, value)

    def read(place: Any) -> Any:
        return memref.load(flat, [arith.addi(arith.muli(place, constant(step)), first)])

    for where, (place,) in zip(
        np.ndindex(registers.shape), layout.thread_idxs(shape), strict=True
    ):
        numbers = [
            read(arith.addi(place, constant(i))) for i in range(layout.vector_length)
        ]
        kind = ir.VectorType.get((len(numbers),), ir.F32Type.get())
        registers[where] = vector.from_elements(kind, numbers)
    return mgpu.FragmentedArray(_registers=registers, _layout=layout, _is_signed=None)


class Ops:
    """What a kernel body does through this module, compiled or interpreted."""

    def __init__(self, *, interpret: bool) -> None:
        self._is_plain = interpret
        self._has_layouts = not interpret or _IS_RECENT

    def cast(self, x: Array, layout: Layout) -> Array:
        """Chooses how the numbers of `x` spread over the threads."""
        return plgpu.layout_cast(x, layout) if self._has_layouts else x

    def iota(self, shape: Sequence[int], axis: int, layout: Layout) -> Array:
        """int32 counters along `axis`."""
        if self._has_layouts:
            return plgpu.broadcasted_iota(jnp.int32, tuple(shape), axis, layout=layout)
        return lax.broadcasted_iota(jnp.int32, tuple(shape), axis)

    def load(self, ref: Any, layout: Layout) -> Array:
        """Reads shared memory into registers."""
        if not self._has_layouts:
            return ref[...]
        index = () if _IS_RECENT else (...,)
        return plgpu.load(ref, *index, layout=layout, optimized=False)

    def every(self, ref: Any, first: Any, step: int, layout: Layout) -> Array:
        """Entries first, first + step, ... of a float32 matrix [n, m] read row by row."""
        count = ref.shape[0] * ref.shape[1] // step
        if self._is_plain:
            return ref[...].reshape(count, step)[:, first]
        read = plgpu.inline_mgpu(
            arg_types=(plgpu.RefType(), plgpu.Layout.WG_SPLAT(())),
            return_type=plgpu.ShapeDtypeStruct(
                (count,), np.dtype(np.float32), layout=layout
            ),
        )(functools.partial(_read_every, step=step, layout=layout))
        return read(ref, jnp.int32(first))

    def scores(self, q: Any, k: Any) -> Float32[Array, "rows keys"]:
        """q · kᵀ of two tiles in shared memory."""
        if not self._has_layouts:
            return jnp.dot(q[...], k[...].T, preferred_element_type=jnp.float32)

        def product(acc):
            plgpu.wgmma(acc, q, _transposed(k))
            return acc[...]

        shape = (q.shape[0], k.shape[0])
        return pl.run_scoped(product, plgpu.ACC(shape, jnp.float32))

    def add_product(
        self, acc: Float32[Array, "rows Dv"], weights: Array, v: Any
    ) -> Float32[Array, "rows Dv"]:
        """acc + weights · v, the latter in shared memory."""
        if self._is_plain:
            return acc + jnp.dot(weights, v[...], preferred_element_type=jnp.float32)

        def product(acc_ref):
            plgpu.wgmma(acc_ref, weights, v)

        result: Any = pl.run_state(product)(plgpu.ACC.init(acc))
        return result

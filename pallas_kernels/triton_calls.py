"""What the Pallas Triton kernels share: how they are called, and types Triton lacks.

Pallas Triton is deprecated upstream since jax 0.11. It stays an explicit choice here for
Ampere and AMD chips, which Mosaic GPU does not serve, for as long as jax has it.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Shaped

MIN_DOT = 16  # Triton's matrix products have at least so many rows, columns and terms
NARROW_OFFSET_BYTES = 2**32  # up to here Pallas gives Triton signed 32-bit offsets


def triton_call(
    kernel,
    *arguments: Array,
    grid: tuple[int, ...],
    outputs: Any,
    num_warps: int,
    num_stages: int = 1,
    aliases: Mapping[int, int] | None = None,
    interpret: bool = False,
):
    """Runs `kernel` on whole arrays: it indexes them itself, so none is sliced or copied.

    The backend is named: jax 0.10 takes Mosaic for GPUs if it is not, jax 0.12 Triton.
    """
    for x in (*arguments, *jax.tree.leaves(outputs)):
        _require_offsets_fit(x)
    if 0 in grid:  # which a GPU refuses to launch
        replaced = {output: arguments[i] for i, output in (aliases or {}).items()}
        leaves, structure = jax.tree.flatten(outputs)
        empty = (jnp.zeros(x.shape, x.dtype) for x in leaves)
        leaves = [replaced.get(i, x) for i, x in enumerate(empty)]
        return jax.tree.unflatten(structure, leaves)
    return pl.pallas_call(
        kernel,
        grid=grid,
        out_shape=outputs,
        input_output_aliases=dict(aliases or {}),
        compiler_params=plgpu.CompilerParams(num_warps=num_warps, num_stages=num_stages),
        interpret=interpret,
    )(*arguments)


def _require_offsets_fit(x: Array | jax.ShapeDtypeStruct) -> None:
    nbytes = x.size * x.dtype.itemsize
    if x.size > 2**31 and nbytes <= NARROW_OFFSET_BYTES:
        raise ValueError(
            f"a pool of {x.size} numbers in {nbytes} bytes has more than 2**31 numbers but "
            f"not more than {NARROW_OFFSET_BYTES} bytes, so Pallas Triton would address it "
            "with signed 32-bit offsets; give the pool fewer blocks, or more."
        )


def next_power_of_two(value: int, least: int = 1) -> int:
    """Triton's tiles have such sizes."""
    return max(least, 1 << (value - 1).bit_length())


def to_float32(x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
    """Converts inside a kernel; exact for all dtypes of pools.

    Triton converts float8_e4m3fn only on chips from 2022 on. A float16 has the same
    fields, one exponent bit and seven of the mantissa wider: moved there, a number is 2⁻⁸
    of its value, the smallest ones included. (NaN becomes ±480: rows that had one have a
    scale of NaN.)
    """
    if x.dtype != jnp.float8_e4m3fn:
        return x.astype(jnp.float32)
    bits = lax.bitcast_convert_type(x, jnp.int8).astype(jnp.int16)
    # the sign was extended into the new exponent's first bit
    bits = (bits << jnp.int16(7)) & jnp.int16(~(1 << 14))
    return lax.bitcast_convert_type(bits, jnp.float16).astype(jnp.float32) * 256.0


def scalar_argument(value: jax.Array | int) -> jax.Array:
    """Kernels take arrays only."""
    return jnp.asarray(value, jnp.int32).reshape(1)

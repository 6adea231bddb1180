"""Quantised K and V: a small number per element and one float32 scale per row.

A row (K or V of one head of one token, or a latent) is scaled by its largest magnitude,
so that one outlier costs precision to its own row only: per-token scales, as KVQuant
(Hooper et al. 2024) and FlexGen (Sheng et al. 2023) discuss beside coarser ones.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Shaped

LARGEST = {"int8": 127.0, "float8_e4m3fn": 448.0}  # magnitude that a scale of 1 stores


def is_quantized(dtype: np.dtype) -> bool:
    return dtype.name in LARGEST


def quantize(
    rows: Float[Array, "*lead D"], dtype: np.dtype
) -> tuple[Shaped[Array, "*lead D"], Float32[Array, "*lead"]]:
    """value · scale ≈ row, rounded half to even. A row of zeros has scale 0."""
    rows = rows.astype(jnp.float32)
    largest = LARGEST[dtype.name]
    scales = jnp.abs(rows).max(axis=-1) / largest
    values = rows / jnp.where(scales == 0, 1, scales)[..., None]
    if dtype == jnp.int8:
        values = jnp.round(values)
    # the division may end a rounding error above the largest number, which fp8 lacks
    return jnp.clip(values, -largest, largest).astype(dtype), scales


def dequantize(
    values: Shaped[Array, "*lead D"], scales: Float32[Array, "*lead"]
) -> Float32[Array, "*lead D"]:
    """The inverse of `quantize`, up to its rounding."""
    return values.astype(jnp.float32) * scales[..., None]

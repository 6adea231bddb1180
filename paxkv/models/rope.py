"""Rotary position embedding (Su et al., RoFormer, 2021), half-split form."""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32

from paxkv.models.config import FULL_ATTENTION, ModelConfig, RopeConfig


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> np.ndarray:
    """Radians per position of each rotated pair, float32 [head_dim / 2]."""
    frequencies = rope.theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if rope.scaling == "linear":
        frequencies = frequencies / rope.factor
    elif rope.scaling == "llama3":
        wavelengths = 2 * math.pi / frequencies
        turns = rope.original_context / wavelengths
        keep = (turns - rope.low_freq_factor) / (
            rope.high_freq_factor - rope.low_freq_factor
        )
        keep = np.clip(keep, 0.0, 1.0)  # 1: short waves as they are, 0: fully stretched
        frequencies = keep * frequencies + (1 - keep) * frequencies / rope.factor
    return frequencies.astype(np.float32)


def layer_frequencies(config: ModelConfig) -> np.ndarray | None:
    """Rotary frequencies per layer [L, D/2]; windowed layers may have their own.

    None for a model whose positions are a learned table.
    """
    if config.rope is None:
        return None
    local = config.local_rope or config.rope
    ropes = [
        config.rope if window == FULL_ATTENTION else local
        for window in config.layer_windows
    ]
    return np.stack([inverse_frequencies(rope, config.head_dim) for rope in ropes])


def rotate(
    x: Float[Array, "T heads D"],
    positions: Int32[Array, "T"],
    frequencies: Float[Array, "half"],
) -> Float[Array, "T heads D"]:
    """Rotates pairs (i, i + D/2) by position · frequency; angles in float32."""
    angles = positions[:, None].astype(jnp.float32) * frequencies
    cos, sin = jnp.cos(angles)[:, None, :], jnp.sin(angles)[:, None, :]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate(
        [first * cos - second * sin, second * cos + first * sin], axis=-1
    )
    return turned.astype(x.dtype)

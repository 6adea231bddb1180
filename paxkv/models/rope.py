"""Rotary position embedding (Su et al., RoFormer, 2021), half-split form."""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32

from paxkv.models.config import FULL_ATTENTION, ModelConfig, RopeConfig


class Rotation(NamedTuple):
    """What a layer does to positions; stacked over layers, or of one layer."""

    frequencies: Float[
        Array | np.ndarray, "*layers half"
    ]  # radians per position of each pair
    magnitude: Float[Array | np.ndarray, "*layers"]


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> np.ndarray:
    """Radians per position of each rotated pair, float32 [head_dim / 2]."""
    frequencies = rope.theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if rope.scaling == "linear":
        frequencies = frequencies / rope.factor
    elif rope.scaling != "none":
        # 1: short waves as they are, 0: fully stretched
        keep = (_llama3_keep if rope.scaling == "llama3" else _yarn_keep)(rope, frequencies)
        frequencies = keep * frequencies + (1 - keep) * frequencies / rope.factor
    return frequencies.astype(np.float32)


def _llama3_keep(rope: RopeConfig, frequencies: np.ndarray) -> np.ndarray:
    """Blends by the turns that a pair makes in the original context."""
    turns = rope.original_context * frequencies / (2 * math.pi)
    keep = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    return np.clip(keep, 0.0, 1.0)


def _yarn_keep(rope: RopeConfig, frequencies: np.ndarray) -> np.ndarray:
    """Blends by the number of a pair, which is linear in the logarithm of its turns."""
    num_pairs = len(frequencies)

    def pair_of(turns: float) -> float:
        ratio = rope.original_context / (turns * 2 * math.pi)
        return num_pairs * math.log(ratio) / math.log(rope.theta)

    first, last = pair_of(rope.high_freq_factor), pair_of(rope.low_freq_factor)
    if rope.whole_pairs:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * num_pairs - 1)
    width = last - first or 1e-3  # a step where both are the same pair
    return 1 - np.clip((np.arange(num_pairs) - first) / width, 0.0, 1.0)


def layer_rotations(config: ModelConfig) -> Rotation | None:
    """Of every layer; windowed layers may have their own.

    None for a model whose positions are a learned table.
    """
    if config.rope is None:
        return None
    local = config.local_rope or config.rope
    ropes = [
        config.rope if window == FULL_ATTENTION else local
        for window in config.layer_windows
    ]
    return Rotation(
        np.stack([inverse_frequencies(rope, config.rope_dim) for rope in ropes]),
        np.asarray([rope.magnitude for rope in ropes], np.float32),
    )


def rotate(
    x: Float[Array, "T heads D"], positions: Int32[Array, "T"], rotation: Rotation
) -> Float[Array, "T heads D"]:
    """Rotates pairs (i, i + D/2) by position · frequency; angles in float32."""
    angles = positions[:, None].astype(jnp.float32) * rotation.frequencies
    cos, sin = (
        (rotation.magnitude * turn(angles))[:, None, :] for turn in (jnp.cos, jnp.sin)
    )
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate(
        [first * cos - second * sin, second * cos + first * sin], axis=-1
    )
    return turned.astype(x.dtype)

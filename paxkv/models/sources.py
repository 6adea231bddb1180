"""A tensor of a file as a parameter of the decoder: names and conversions.

Files keep a linear map as [out, in], the decoder as [in, out].
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from paxkv.models.stacks import LAYERS

Convert = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor's name in the file, and what makes it the decoder's parameter."""

    name: str
    convert: Convert

    @property
    def of_experts(self) -> bool:
        """Whether every expert has such a tensor."""
        return "{expert}" in self.name


Table = Mapping[str, Source]  # by path of the parameter


def as_is(x: np.ndarray) -> np.ndarray:
    return x


def transpose(x: np.ndarray) -> np.ndarray:
    return x.T


def add_one(x: np.ndarray) -> np.ndarray:
    """A norm that multiplies by 1 + w; sums in float32."""
    return x.astype(np.float32) + 1


def third(x: np.ndarray, index: int) -> np.ndarray:
    """The query, key or value part of GPT-2's fused projection, already [in, out]."""
    if x.shape[-1] % 3:
        raise ValueError(f"the last axis of {x.shape} must be three equal parts.")
    return np.split(x, 3, axis=-1)[index]


def half_split(x: np.ndarray, heads: int) -> np.ndarray:
    """Undoes the row order of files whose models rotate neighbouring pairs: Llama's GGUF,
    DeepSeek.

    There the rows of a head come as 0, D/2, 1, D/2 + 1, ...
    """
    return x.reshape(heads, -1, 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def half_split_last(x: np.ndarray, heads: int, count: int) -> np.ndarray:
    """The same for the last `count` rows of each head, the only ones that rotate."""
    x = x.reshape(heads, -1, *x.shape[1:])
    plain, turning = x[:, :-count], x[:, -count:]
    turning = half_split(turning.reshape(-1, *x.shape[2:]), heads).reshape(turning.shape)
    return np.concatenate([plain, turning], axis=1).reshape(-1, *x.shape[2:])


def part_of_heads(x: np.ndarray, heads: int, start: int, stop: int | None) -> np.ndarray:
    """Rows [start, stop) of each head."""
    part = x.reshape(heads, -1, *x.shape[1:])[:, start:stop]
    return part.reshape(-1, *x.shape[1:])


def linear(
    ours: str, theirs: str, *steps: Convert, in_first: bool = False
) -> dict[str, Source]:
    """Kernel and bias of a linear map; `steps` apply to both before the transpose."""

    def convert(x: np.ndarray) -> np.ndarray:
        for step in steps:
            x = step(x)
        return x if in_first or x.ndim == 1 else transpose(x)

    return {
        f"{ours}.kernel": Source(f"{theirs}.weight", convert),
        f"{ours}.bias": Source(f"{theirs}.bias", convert),
    }


def norm(ours: str, theirs: str, convert: Convert = as_is) -> dict[str, Source]:
    return {
        f"{ours}.scale": Source(f"{theirs}.weight", convert),
        f"{ours}.bias": Source(f"{theirs}.bias", as_is),
    }


def in_layers(table: Table, prefix: str, stack: str = LAYERS) -> dict[str, Source]:
    return {
        f"{stack}.{path}": Source(f"{prefix}.{{layer}}.{source.name}", source.convert)
        for path, source in table.items()
    }


def inside(table: Table, ours: str, theirs: str) -> dict[str, Source]:
    """Of a module within the layer."""
    return {
        f"{ours}.{path}": Source(f"{theirs}.{source.name}", source.convert)
        for path, source in table.items()
    }

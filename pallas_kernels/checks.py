"""Checks that every op makes while it is traced."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import jax.numpy as jnp

Run = TypeVar("Run", bound=Callable)


def choose(offered: Mapping[str, Run], implementation: str, op: str) -> Run:
    """The function called `implementation`; never another in its place."""
    if implementation not in offered:
        raise ValueError(
            f"{implementation=} of {op} is not offered; choose from {sorted(offered)}."
        )
    return offered[implementation]


def require_int32(**arrays) -> None:
    """Tables, lengths and slots are int32: narrower ones overflow at long contexts."""
    for name, array in arrays.items():
        if array.dtype != jnp.int32:
            raise ValueError(f"{name} has dtype {array.dtype}, must be int32; cast it.")

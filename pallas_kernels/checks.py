"""Checks that every op makes while it is traced."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import jax.numpy as jnp
import numpy as np

from pallas_kernels.kv_blocks import KVBlocks

Offered = Mapping[str, str]  # module of an implementation, by its name
# Pools are laid out for one platform. Portable implementations read them all.
PLATFORM_OF = {"tpu": "tpu", "gpu": "gpu", "gpu_triton": "gpu", "cpu": "cpu"}


def choose(offered: Offered, implementation: str, op: str, cache: KVBlocks) -> Callable:
    """`<op>_<implementation>` of its module; never another in its place.

    Modules are imported when first used: each needs libraries that others do without.
    """
    if implementation not in offered:
        raise ValueError(
            f"{implementation=} of {op} is not offered; choose from {sorted(offered)}."
        )
    platform = PLATFORM_OF.get(implementation, cache.layout.platform)
    if cache.layout.platform != platform:
        raise ValueError(
            f"{implementation=} of {op} reads pools laid out for {platform!r}, this one is "
            f"for {cache.layout.platform!r}; pass the former to kv_layout."
        )
    return getattr(import_module(offered[implementation]), f"{op}_{implementation}")


def require_layer(layer: Any, cache: KVBlocks) -> None:
    """A static layer lies in the pool; a traced one is an int32 scalar, taken on trust."""
    if isinstance(layer, (int, np.integer)) and not isinstance(layer, bool):
        if not 0 <= layer < cache.num_layers:
            raise ValueError(
                f"layer={layer} must be in [0, {cache.num_layers}), the pool's layers."
            )
    elif getattr(layer, "shape", None) != () or layer.dtype != jnp.int32:
        raise ValueError(f"{layer=} must be an integer or an int32 scalar.")


def require_int32(**arrays) -> None:
    """Tables, lengths and slots are int32: narrower ones overflow at long contexts."""
    for name, array in arrays.items():
        if not hasattr(array, "dtype"):
            raise ValueError(f"{name} is a {type(array).__name__}, must be an array.")
        if array.dtype != jnp.int32:
            raise ValueError(f"{name} has dtype {array.dtype}, must be int32; cast it.")

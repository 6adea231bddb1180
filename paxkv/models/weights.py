"""Tensors from files to the decoder's parameters, one parameter in memory at a time."""

from collections.abc import Callable, Collection
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from paxkv.models.config import ModelConfig
from paxkv.models.families import Source, Table, unused_names
from paxkv.models.parameters import (
    LAYERS,
    parameter_dtype,
    parameter_shapes,
    raise_weight_errors,
)

# Other dtypes are quantised values, which mean nothing without their scales, or no weights.
FLOATS = ("F64", "F32", "F16", "BF16")
PROGRESS_FROM_BYTES = 2**28  # a bar for a smaller model would be noise


@runtime_checkable
class TensorFile(Protocol):
    """One or several files of named tensors; only `read` reads data."""

    place: str  # for messages

    def names(self) -> Collection[str]: ...

    def dtype(self, name: str) -> str: ...  # as safetensors spells it, `BF16`

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str) -> np.ndarray: ...


def read_parameters(
    config: ModelConfig, tensors: TensorFile, table: Table, dtype: str
) -> dict[str, Any]:
    """Path to array on the default device, for every parameter of the decoder.

    Raises:
      ValueError: tensors are missing, left over or of the wrong shape or dtype; all are
        named.
    """
    shapes = parameter_shapes(config)
    _check(config, tensors, table, shapes)
    num_bytes = sum(int(np.prod(shape)) for shape in shapes.values()) * 4
    params = {}
    for path, shape in tqdm(
        shapes.items(),
        desc="loading weights",
        unit="parameter",
        disable=num_bytes < PROGRESS_FROM_BYTES,
    ):
        array = np.empty(shape, parameter_dtype(path, dtype))
        if _is_stacked(path):
            for layer in range(config.num_layers):
                array[layer] = _read(tensors, table[path], layer)
        else:
            array[...] = _read(tensors, table[path], None)
        params[path] = jnp.asarray(array)
    return params


def _is_stacked(path: str) -> bool:
    return path.split(".")[0] == LAYERS


def _read(tensors: TensorFile, source: Source, layer: int | None) -> np.ndarray:
    return source.convert(tensors.read(source.name.format(layer=layer)))


def _check(
    config: ModelConfig,
    tensors: TensorFile,
    table: Table,
    shapes: dict[str, tuple[int, ...]],
) -> None:
    """Compares names, shapes and dtypes before any data is read."""
    names = set(tensors.names())
    used, missing, misshapen, no_floats = set(), [], [], {}
    for path, shape in shapes.items():
        stacked = _is_stacked(path)
        need = shape[1:] if stacked else shape
        source = table[path]
        for layer in range(config.num_layers if stacked else 1):
            name = source.name.format(layer=layer)
            used.add(name)
            if name not in names:
                missing.append(name)
                continue
            if (stored := tensors.dtype(name)) not in FLOATS:
                no_floats[name] = stored
            if _shape_after(source.convert, tensors.shape(name)) != need:
                misshapen.append((f"{name} for {path}", tensors.shape(name), need))
    unused = unused_names(config)
    raise_weight_errors(
        tensors.place,
        missing=dict.fromkeys(missing),
        extra=[name for name in sorted(names - used) if not unused.fullmatch(name)],
        misshapen=misshapen,
        no_floats=no_floats,
    )


def _shape_after(
    convert: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    """What `convert` makes of a tensor of that shape, tried on one that takes no memory.

    None: it cannot be converted.
    """
    try:
        return convert(np.broadcast_to(np.int8(0), shape)).shape
    except (ValueError, IndexError):
        return None

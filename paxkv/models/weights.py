"""Tensors from files to the decoder's parameters, one parameter in memory at a time."""

from collections.abc import Callable, Collection, Iterator
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from paxkv.models.config import ModelConfig
from paxkv.models.families import unused_names
from paxkv.models.parameters import (
    parameter_dtype,
    parameter_shapes,
    raise_weight_errors,
)
from paxkv.models.sources import Source, Table
from paxkv.models.stacks import layer_stacks

# Other dtypes are quantised values, which mean nothing without their scales, or no weights.
FLOATS = ("F64", "F32", "F16", "BF16")
Places = list[tuple[tuple[int, ...], int | None]]  # index in an axis or none, number
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
        for index, name in _names(config, path, table[path]):
            array[index] = table[path].convert(tensors.read(name))
        params[path] = jnp.asarray(array)
    return params


def _names(
    config: ModelConfig, path: str, source: Source
) -> Iterator[tuple[tuple[int, ...], str]]:
    """Tensors of one parameter, each with where it lies in the parameter's first axes."""
    layers: Places = [((), None)]
    for stack in layer_stacks(config):
        if stack.name == path.split(".")[0]:
            layers = [((i,), stack.first + i) for i in range(stack.count)]
    experts: Places = [((), None)]
    if config.experts is not None and source.of_experts:
        experts = [((i,), i) for i in range(config.experts.num_experts)]
    for of_layer, layer in layers:
        for of_expert, expert in experts:
            name = source.name.format(layer=layer, expert=expert)
            yield (*of_layer, *of_expert), name


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
        source = table[path]
        for index, name in _names(config, path, source):
            need = shape[len(index) :]
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

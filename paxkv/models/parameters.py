"""The decoder's parameters as a plain tree: shapes, dtypes, and a decoder from arrays.

A parameter is named by its path, `layers.q_proj.kernel`. Those of the layers are stacked
on axis 0, a stack's under the stack's name.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from paxkv.models.config import ModelConfig
from paxkv.models.decoder import Decoder

DTYPES = ("float32", "bfloat16", "float16")


def check_dtype(dtype: str) -> None:
    """Refuses a dtype that weights cannot be kept in."""
    if dtype not in DTYPES:
        raise ValueError(f"{dtype=} is not a dtype for weights; use one of {DTYPES}.")


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Path to shape of every parameter; nothing is allocated."""
    _, state = _abstract(config)
    return {
        path: tuple(leaf.shape)
        for path, leaf in flat_params(nnx.to_pure_dict(state)).items()
    }


def parameter_dtype(path: str, dtype: str) -> np.dtype:
    """Norm weights stay float32: `1 + w` in bfloat16 would lose most of a small w. So do
    those that choose experts, since a choice is not nearly right."""
    module = path.split(".")[-2]
    return jnp.dtype("float32" if module.endswith(("norm", "router")) else dtype)


def build_decoder(config: ModelConfig, params: Mapping[str, Any]) -> Decoder:
    """A decoder that holds these arrays, by path; no parameter is drawn at random.

    `params` must have exactly the paths and shapes of `parameter_shapes(config)`.
    """
    graph, state = _abstract(config)
    nested = nested_params({path: jnp.asarray(array) for path, array in params.items()})
    nnx.replace_by_pure_dict(state, nested)
    return nnx.merge(graph, state)


def decoder_params(decoder: Decoder) -> dict[str, Any]:
    """Inverse of `build_decoder`: path to array."""
    return flat_params(nnx.to_pure_dict(nnx.state(decoder, nnx.Param)))


def flat_params(nested: Any) -> dict[str, Any]:
    """A nested dict's leaves by path."""
    leaves, _ = jax.tree.flatten_with_path(nested)
    return {".".join(str(key.key) for key in path): leaf for path, leaf in leaves}


def nested_params(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Inverse of `flat_params`."""
    nested: dict[str, Any] = {}
    for path, leaf in flat.items():
        *parents, name = path.split(".")
        node = nested
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = leaf
    return nested


def raise_weight_errors(
    place: str,
    *,
    missing: Iterable[str],
    extra: Iterable[str],
    misshapen: Iterable[tuple[str, tuple[int, ...] | None, tuple[int, ...]]],
    no_floats: Mapping[str, str] | None = None,
) -> None:
    """One error that names every tensor that does not fit; none if all do.

    Args:
      place: the file or directory that holds the weights.
      misshapen: name, shape found (None: it cannot be converted at all), shape needed.
      no_floats: name and dtype.
    """
    problems = [f"missing: {name}" for name in missing]
    problems += [f"extra: {name}" for name in extra]
    problems += [f"{name} has shape {has}, needs {need}" for name, has, need in misshapen]
    problems += [
        f"{name} has dtype {dtype}, needs floats: dequantise the weights first"
        for name, dtype in (no_floats or {}).items()
    ]
    if problems:
        raise ValueError(
            f"{len(problems)} tensors of {place} do not fit its configuration; use the "
            "configuration that belongs to these weights, or download both again:\n  "
            + "\n  ".join(problems)
        )


def _abstract(config: ModelConfig) -> tuple[nnx.GraphDef, nnx.State]:
    decoder = nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0)))
    return nnx.split(decoder)

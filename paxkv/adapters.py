"""Adapters from files to the arrays that a step takes: Hugging Face's PEFT format.

adapter_config.json         rank, scale and names of the adapted projections
adapter_model.safetensors   `….layers.0.self_attn.q_proj.lora_A.weight` [rank, in],
                            `….lora_B.weight` [out, rank]
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file

from paxkv.models.config import ModelConfig
from paxkv.models.lora import NO_ADAPTER, LoraPair, LoraWeights, adapted_shapes
from paxkv.models.parameters import check_dtype
from paxkv.models.peft_file import CONFIG, WEIGHTS, read_pairs, tensor_names
from paxkv.request_options import Adapter

HostPair = tuple[np.ndarray, np.ndarray]  # A [L, in, rank], B [L, rank, out], float32


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSet:
    """The adapters that an engine serves. Which one a token uses is a number."""

    lora: LoraWeights
    adapters: tuple[Adapter, ...]  # number i + 1 is adapters[i]

    def number(self, adapter: Adapter | None) -> int:
        """What `TokenAdapters.ids` holds for a request's adapter.

        Raises:
          ValueError: it is not loaded, or under its name another version is.
        """
        if adapter is None:
            return NO_ADAPTER
        if adapter in self.adapters:
            return 1 + self.adapters.index(adapter)
        loaded = ", ".join(f"{a.name} {a.version[:12]}" for a in self.adapters) or "none"
        raise ValueError(
            f"adapter {adapter.name} {adapter.version[:12]} must be one of those loaded, "
            f"which are: {loaded}. Load it with the engine, or take the one of that name."
        )

    def named(self, name: str) -> Adapter:
        """The adapter of that name, with the version that is loaded.

        Raises:
          ValueError: none has that name.
        """
        for adapter in self.adapters:
            if adapter.name == name:
                return adapter
        names = ", ".join(adapter.name for adapter in self.adapters) or "none"
        raise ValueError(f"adapter {name!r} must be one of those loaded: {names}.")


def load_adapters(
    directories: Mapping[str, str | os.PathLike[str]], config: ModelConfig, dtype: str
) -> AdapterSet:
    """Reads adapters by name; all get the largest rank, filled up with zeros.

    Args:
      directories: of each adapter, in PEFT's format, by the name that requests use.
      config: of the model that they change.
      dtype: of the weights in memory.

    Raises:
      FileNotFoundError: a directory lacks one of the two files.
      ValueError: the model takes no adapters, or an adapter does not fit it.
    """
    check_dtype(dtype)
    read = {name: read_pairs(Path(place), config) for name, place in directories.items()}
    adapters = tuple(
        Adapter(name=name, version=adapter_version(Path(place)))
        for name, place in directories.items()
    )
    return AdapterSet(
        lora=stack_pairs(list(read.values()), config, dtype), adapters=adapters
    )


def stack_pairs(
    adapters: list[Mapping[str, HostPair]], config: ModelConfig, dtype: str
) -> LoraWeights:
    """Joins the pairs of each projection that any adapter changes; no adapters: {}."""
    shapes, layers = adapted_shapes(config), config.num_layers
    ranks = [a.shape[-1] for pairs in adapters for a, _ in pairs.values()]
    weights = {}
    for name, (size_in, size_out) in shapes.items():
        if not any(name in pairs for pairs in adapters):
            continue
        a = np.zeros((layers, size_in, len(adapters), max(ranks)), np.float32)
        b = np.zeros((layers, len(adapters), max(ranks), size_out), np.float32)
        for index, pairs in enumerate(adapters):
            if name in pairs:
                own_a, own_b = pairs[name]
                a[:, :, index, : own_a.shape[-1]] = own_a
                b[:, index, : own_b.shape[-2]] = own_b
        weights[name] = LoraPair(jnp.asarray(a, dtype), jnp.asarray(b, dtype))
    return weights


def adapter_version(directory: Path) -> str:
    """SHA-256 over both files, so that other weights are another version."""
    digest = hashlib.sha256()
    for name in (CONFIG, WEIGHTS):
        with (directory / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def save_adapter(
    directory: Path,
    config: ModelConfig,
    pairs: Mapping[str, HostPair],
    *,
    scale: float = 1.0,
    base_model: str = "",
) -> None:
    """Writes A and B of some projections, all of one rank, as PEFT does.

    Args:
      pairs: by projection. What is added to a map is x A B · `scale`.
      base_model: name of the model, for readers.
    """
    (rank,) = {a.shape[-1] for a, _ in pairs.values()}
    tensors, modules = {}, set()
    for (name, layer), (name_a, name_b) in tensor_names(config).items():
        if name in pairs:
            a, b = pairs[name]
            modules.add(name_a.split(".")[-3])
            tensors[name_a] = np.ascontiguousarray(a[layer].T)
            tensors[name_b] = np.ascontiguousarray(b[layer].T)
    fields: dict[str, Any] = {
        "base_model_name_or_path": base_model,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "lora_alpha": scale * rank,
        "lora_dropout": 0.0,
        "peft_type": "LORA",
        "r": rank,
        "target_modules": sorted(modules),
        "task_type": "CAUSAL_LM",
    }
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / WEIGHTS)
    (directory / CONFIG).write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")

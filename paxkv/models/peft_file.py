"""One adapter as Hugging Face's PEFT writes it, checked against the model it changes."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - gives numpy the bfloat16 that safetensors asks it for
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from paxkv.models.config import ModelConfig
from paxkv.models.families import hf_table
from paxkv.models.json_file import read_json
from paxkv.models.lora import adapted_shapes
from paxkv.models.stacks import LAYERS

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
ENCLOSING = "base_model.model.model."  # of the modules of a model with an output head
PREFIX = re.compile(r"^(?:base_model|model|language_model|decoder)\.")
FLOATS = ("float64", "float32", "float16", "bfloat16")
FUSED = ("gpt2",)  # families whose files keep q, k and v as one map
# What the format can say beyond x A B · alpha / rank, with the value that says nothing.
UNSUPPORTED = {
    "use_dora": False,
    "lora_bias": False,
    "fan_in_fan_out": False,
    "rank_pattern": {},
    "alpha_pattern": {},
    "modules_to_save": None,
    "layers_to_transform": None,
    "trainable_token_indices": None,
    "bias": "none",
}


def read_pairs(
    directory: Path, config: ModelConfig
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """A [L, in, rank] and B [L, rank, out] times the scale, by projection; float32.

    Raises:
      FileNotFoundError: the directory lacks one of the two files.
      ValueError: the adapter says what is not supported, or does not fit the model;
        tensors that are missing, left over or of the wrong shape are all named.
    """
    for name in (CONFIG, WEIGHTS):
        if not (directory / name).is_file():
            raise FileNotFoundError(
                f"{directory} has no {name}, so it is no adapter; give the folder that "
                "save_pretrained(..., safe_serialization=True) of PEFT wrote."
            )
    shapes = _projections(config)
    fields = read_json(directory / CONFIG)
    rank, scale = _rank_and_scale(directory / CONFIG, fields)
    tensors = _tensors(directory / WEIGHTS)
    places = tensor_names(config, enclosing="")
    targets = _targets(directory / CONFIG, fields, places)
    if targets is None:  # a pattern: what it matched is what the file holds
        targets = {name for (name, _), both in places.items() if set(both) & tensors.keys()}
    _check_tensors(directory, fields, tensors, places, targets, shapes, rank)

    def stacked(name: str, which: int) -> np.ndarray:
        names = [places[name, layer][which] for layer in range(config.num_layers)]
        return np.stack([tensors[n].astype(np.float32).T for n in names])

    return {
        name: (stacked(name, 0), stacked(name, 1) * np.float32(scale))
        for name in shapes
        if name in targets
    }


def tensor_names(
    config: ModelConfig, enclosing: str = ENCLOSING
) -> dict[tuple[str, int], tuple[str, str]]:
    """Names of A and B by projection and layer, each after the modules around it."""
    table = hf_table(config)
    names = {}
    for projection in _projections(config):
        module = table[f"{LAYERS}.{projection}.kernel"].name.removesuffix(".weight")
        for layer in range(config.num_layers):
            place = enclosing + module.format(layer=layer)
            names[projection, layer] = f"{place}.lora_A.weight", f"{place}.lora_B.weight"
    return names


def _projections(config: ModelConfig) -> Mapping[str, tuple[int, int]]:
    if config.family in FUSED:
        raise ValueError(
            f"adapters need q, k and v as maps of their own; family={config.family!r} "
            "keeps them as one. Serve it without adapters, or with the adapter merged "
            "into its weights."
        )
    return adapted_shapes(config)


def _rank_and_scale(path: Path, fields: Mapping[str, Any]) -> tuple[int, float]:
    """The checked rank, and what x A B is multiplied with."""
    if fields.get("peft_type") != "LORA":
        raise ValueError(
            f"{path}: peft_type={fields.get('peft_type')!r} must be 'LORA'; other kinds "
            "of adapters are not served. Train a LoRA adapter."
        )
    for name, neutral in UNSUPPORTED.items():
        value = fields.get(name, neutral)
        if value != neutral and value:
            raise ValueError(
                f"{path}: {name}={value!r} must be {neutral!r}: only x A B times alpha / "
                "rank is added to a layer's maps. Train the adapter without it."
            )
    rank, alpha = fields.get("r"), fields.get("lora_alpha")
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        raise ValueError(f"{path}: r={rank!r} must be a rank >= 1; download it again.")
    if not isinstance(alpha, int | float) or isinstance(alpha, bool):
        raise ValueError(
            f"{path}: lora_alpha={alpha!r} must be a number; download it again."
        )
    return rank, alpha / (rank**0.5 if fields.get("use_rslora") else rank)


def _targets(
    path: Path,
    fields: Mapping[str, Any],
    places: Mapping[tuple[str, int], tuple[str, str]],
) -> set[str] | None:
    """Projections that the config names; None: it gives a pattern of names."""
    modules = fields.get("target_modules")
    if isinstance(modules, str):
        return None
    if not isinstance(modules, list) or not modules:
        raise ValueError(
            f"{path}: target_modules={modules!r} must be a list of modules or a pattern; "
            "download it again."
        )
    ours = {name_a.split(".")[-3]: name for (name, _), (name_a, _) in places.items()}
    theirs = {str(module).split(".")[-1] for module in modules}
    if unknown := sorted(theirs - ours.keys()):
        raise ValueError(
            f"{path}: target_modules names {unknown}, which must be among "
            f"{', '.join(ours)}: only these maps of a layer are adapted. Train the "
            "adapter on these, or use the model that it was trained on."
        )
    return {ours[module] for module in theirs}


def _tensors(path: Path) -> dict[str, np.ndarray]:
    """By name without the enclosing modules, in the spellings of several versions."""
    try:
        stored = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{path} is no complete safetensors file ({error}); download it again."
        ) from error
    tensors = {}
    for name, tensor in stored.items():
        while (shorter := PREFIX.sub("", name)) != name:
            name = shorter
        if name in tensors:
            raise ValueError(
                f"{path} holds {name} twice, under two enclosing modules; save the "
                "adapter of one model only."
            )
        tensors[name] = tensor
    return tensors


def _check_tensors(
    directory: Path,
    fields: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    places: Mapping[tuple[str, int], tuple[str, str]],
    targets: set[str],
    shapes: Mapping[str, tuple[int, int]],
    rank: int,
) -> None:
    """One error that names every tensor that does not fit; none if all do."""
    needed = {}
    for (name, _), (name_a, name_b) in places.items():
        if name in targets:
            size_in, size_out = shapes[name]
            needed |= {name_a: (rank, size_in), name_b: (size_out, rank)}
    problems = [f"missing: {name}" for name in needed if name not in tensors]
    problems += [f"extra: {name}" for name in sorted(tensors.keys() - needed.keys())]
    problems += [
        f"{name} has shape {tensors[name].shape}, needs {shape}"
        for name, shape in needed.items()
        if name in tensors and tensors[name].shape != shape
    ]
    problems += [
        f"{name} has dtype {tensor.dtype}, needs floats: dequantise it first"
        for name, tensor in tensors.items()
        if str(tensor.dtype) not in FLOATS
    ]
    if problems:
        base = fields.get("base_model_name_or_path")
        raise ValueError(
            f"{len(problems)} tensors of {directory} do not fit this model and r={rank} "
            f"of its {CONFIG}; use the adapter with the model that it was trained on "
            f"({base}), or download it again:\n  " + "\n  ".join(problems)
        )

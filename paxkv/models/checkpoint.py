"""The project's own checkpoints: a directory that is enough to serve a model.

config.json      the fields of `ModelConfig`
weights/         Orbax, a nested dict of arrays
checksums.json   of the files in weights/
tokenizer.json   if the model came with one
"""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax import nnx

from paxkv.models.checksums import check_checksums, write_checksums
from paxkv.models.config import ExpertsConfig, LatentConfig, ModelConfig, RopeConfig
from paxkv.models.decoder import Decoder
from paxkv.models.json_file import read_json
from paxkv.models.parameters import (
    build_decoder,
    decoder_params,
    flat_params,
    nested_params,
    parameter_dtype,
    parameter_shapes,
    raise_weight_errors,
)

CONFIG = "config.json"
WEIGHTS = "weights"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
PARTIAL = ".partial"  # suffix of a directory that is being written
# Orbax notes the absolute path of the save here, and restores without it.
COMMIT_NOTE = "commit_success.txt"
ORBAX_LISTING = "_METADATA"
# Fields of the config that are objects of their own, or null.
PARTS = {
    "rope": RopeConfig,
    "local_rope": RopeConfig,
    "latent": LatentConfig,
    "experts": ExpertsConfig,
}
# Fields that checkpoints written before there were such models lack: they have the default.
LATER_FIELDS = {"latent", "experts", "magnitude", "whole_pairs"}


def save_checkpoint(
    directory: Path, decoder: Decoder, *, tokenizer: Path | None = None
) -> None:
    """Writes all or nothing: an existing checkpoint is replaced once the new one is whole.

    Args:
      tokenizer: a `tokenizer.json` to put beside the weights; a `tokenizer_config.json`
        in its folder comes along.

    Raises:
      FileExistsError: `directory` holds something else, which is left alone.
      OSError: the disk is full or cannot be written; nothing is left behind.
    """
    directory = directory.resolve()
    if directory.exists() and not is_checkpoint(directory):
        raise FileExistsError(
            f"{directory} exists and is no checkpoint; give a folder that does not exist."
        )
    partial = directory.with_name(directory.name + PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        _write(partial, decoder, tokenizer)
        if directory.exists():
            shutil.rmtree(directory)
        partial.rename(directory)
    except Exception as error:  # Orbax and its storage layer raise many kinds
        raise OSError(_unwritten(directory, decoder, error)) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(partial: Path, decoder: Decoder, tokenizer: Path | None) -> None:
    partial.mkdir(parents=True)
    fields = dataclasses.asdict(decoder.config)
    (partial / CONFIG).write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    if tokenizer is not None:
        shutil.copyfile(tokenizer, partial / TOKENIZER)
        if (tokenizer.parent / TOKENIZER_CONFIG).is_file():
            shutil.copyfile(tokenizer.parent / TOKENIZER_CONFIG, partial / TOKENIZER_CONFIG)
    tree = nnx.to_pure_dict(nnx.state(decoder, nnx.Param))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(partial / WEIGHTS, jax.tree.map(np.asarray, tree))
    (partial / WEIGHTS / COMMIT_NOTE).unlink(missing_ok=True)
    write_checksums(partial / WEIGHTS)


def _unwritten(directory: Path, decoder: Decoder, error: Exception) -> str:
    num_bytes = sum(array.nbytes for array in decoder_params(decoder).values())
    place = next(folder for folder in directory.parents if folder.exists())
    return (
        f"{directory} cannot be written ({_kind(error)}); the disk may be full: {place} "
        f"has {shutil.disk_usage(place).free:,} bytes free, the weights take "
        f"{num_bytes:,}. Free some space, or give a folder elsewhere that you may write."
    )


def is_checkpoint(directory: Path) -> bool:
    """Whether a directory is one of ours; a Hugging Face one has no `weights/`."""
    return (directory / WEIGHTS).is_dir() and (directory / CONFIG).is_file()


def load_checkpoint(directory: Path, dtype: str) -> Decoder:
    """Restores a decoder, its weights cast to `dtype`.

    Raises:
      ValueError: the checkpoint is damaged, or its weights do not fit its config.
    """
    directory = directory.resolve()
    config = _config(directory / CONFIG)
    shapes = parameter_shapes(config)
    weights = directory / WEIGHTS
    check_checksums(weights)
    stored = _stored_paths(weights)
    params = {}
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        for path in sorted(shapes.keys() & stored):
            try:
                array = _restore(checkpointer, weights, path, parameter_dtype(path, dtype))
            except Exception as error:  # Orbax and its storage layer raise many kinds
                raise ValueError(_damage(weights, error)) from error
            params[path] = jnp.asarray(array)
    raise_weight_errors(
        str(weights),
        missing=sorted(shapes.keys() - stored),
        extra=sorted(stored - shapes.keys()),
        misshapen=[
            (path, array.shape, shapes[path])
            for path, array in params.items()
            if array.shape != shapes[path]
        ],
    )
    return build_decoder(config, params)


def _restore(
    checkpointer: ocp.Checkpointer, weights: Path, path: str, dtype: np.dtype
) -> np.ndarray:
    """One parameter, of the shape it was stored in.

    All at once would take twice the memory, and of a damaged file fail in several
    threads, each of which prints its own trace.
    """
    how = ocp.RestoreArgs(restore_type=np.ndarray, dtype=dtype)
    arguments = ocp.args.PyTreeRestore(
        item=nested_params({path: 0}),
        restore_args=nested_params({path: how}),
        partial_restore=True,
    )
    return flat_params(checkpointer.restore(weights, args=arguments))[path]


def _stored_paths(weights: Path) -> set[str]:
    """Of every array in the checkpoint, from the file in which Orbax lists them.

    Its `metadata` would open all arrays, in threads.
    """
    listing = weights / ORBAX_LISTING
    try:
        entries = read_json(listing)["tree_metadata"].values()
        keys = [[part["key"] for part in entry["key_metadata"]] for entry in entries]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(_damage(weights, error)) from error
    return {".".join(path) for path in keys}


def _damage(weights: Path, error: Exception) -> str:
    return (
        f"{weights} cannot be restored ({_kind(error)}); copy the checkpoint again or "
        "convert the model anew."
    )


def _kind(error: Exception) -> str:
    """The class and one line, of a long one the ends: the cause comes last."""
    line = str(error).splitlines()[0] if str(error) else ""
    if len(line) > 300:
        line = f"{line[:120]} … {line[-120:]}"
    return f"{type(error).__name__}: {line}"


def _config(path: Path) -> ModelConfig:
    fields = read_json(path)
    problems = _wrong_names(ModelConfig, fields)
    for name, part in PARTS.items():
        if isinstance(fields.get(name), dict):
            problems += [f"{name}: {it}" for it in _wrong_names(part, fields[name])]
    if problems:
        raise ValueError(
            f"{path} does not have the fields of a model's config: {'; '.join(problems)}. "
            "Copy the checkpoint again or convert the model anew."
        )
    for name in ("layer_windows", "eos_token_ids"):
        if isinstance(fields[name], list):
            fields[name] = tuple(fields[name])
    try:
        for name, part in PARTS.items():
            if isinstance(fields.get(name), dict):
                fields[name] = part(**fields[name])
        return ModelConfig(**fields)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _wrong_names(of: type, fields: dict[str, Any]) -> list[str]:
    known = {field.name for field in dataclasses.fields(of)}
    lacks = known - fields.keys() - LATER_FIELDS
    missing = [f"{name} is missing" for name in sorted(lacks)]
    return missing + [f"{name!r} is unknown" for name in sorted(fields.keys() - known)]

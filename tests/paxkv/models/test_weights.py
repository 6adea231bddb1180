"""Safetensors directories: every misfit in one error, and damaged files named."""

import json
import os
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from paxkv.models.loading import load_decoder
from paxkv.models.parameters import decoder_params
from tests.paxkv.models.hf_fixtures import FOLDER, decoder_of


def copy_of(name: str, tmp_path):
    return shutil.copytree(FOLDER / name, tmp_path / name)


def edit(folder, change) -> None:
    """Applies `change` to the dict of the folder's tensors."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def assert_same(folder, name: str) -> None:
    loaded = decoder_params(load_decoder(folder))
    for path, array in decoder_params(decoder_of(name)).items():
        np.testing.assert_array_equal(loaded[path], array, err_msg=path)


def test_every_misfit_is_in_one_error(tmp_path):
    folder = copy_of("qwen3", tmp_path)

    def spoil(tensors):
        del tensors["model.norm.weight"]
        del tensors["model.layers.1.self_attn.q_norm.weight"]
        tensors["model.layers.7.mlp.up_proj.weight"] = np.zeros((2, 2), np.float32)
        tensors["model.layers.0.mlp.up_proj.weight"] = np.zeros((48, 31), np.float32)

    edit(folder, spoil)
    with pytest.raises(ValueError) as error:
        load_decoder(folder)
    message = str(error.value)
    assert message.startswith("4 tensors of ")
    for words in (
        "missing: norm.weight",
        "missing: layers.1.self_attn.q_norm.weight",
        "extra: layers.7.mlp.up_proj.weight",
        "layers.0.mlp.up_proj.weight for layers.up_proj.kernel has shape (48, 31), "
        "needs (32, 48)",
    ):
        assert words in message


def test_dtypes_that_are_no_floats_are_in_the_same_error(tmp_path):
    folder = copy_of("qwen3", tmp_path)

    def spoil(tensors):
        del tensors["model.norm.weight"]
        for name, dtype in (("up", np.int8), ("down", np.bool_)):
            name = f"model.layers.0.mlp.{name}_proj.weight"
            tensors[name] = tensors[name].astype(dtype)

    edit(folder, spoil)
    with pytest.raises(ValueError) as error:
        load_decoder(folder)
    message = str(error.value)
    assert message.startswith("3 tensors of ")
    for words in (
        "missing: norm.weight",
        "layers.0.mlp.up_proj.weight has dtype I8, needs floats: dequantise",
        "layers.0.mlp.down_proj.weight has dtype BOOL, needs floats",
    ):
        assert words in message


def test_a_tensor_that_cannot_be_converted_is_misshapen(tmp_path):
    folder = copy_of("gpt2", tmp_path)

    def spoil(tensors):
        tensors["transformer.h.0.attn.c_attn.weight"] = np.zeros((32, 95), np.float32)

    edit(folder, spoil)
    with pytest.raises(ValueError, match=r"h\.0\.attn\.c_attn\.weight for layers\.q_proj"):
        load_decoder(folder)


@pytest.mark.parametrize(
    ("name", "prefix", "other"),
    [
        ("gpt2", "transformer.", ""),
        ("opt", "model.", ""),
        ("gemma3", "model.", "language_model.model."),
        ("gemma3", "model.", "model.language_model."),
    ],
)
def test_names_may_lack_or_gain_enclosing_modules(name, prefix, other, tmp_path):
    folder = copy_of(name, tmp_path)

    def rename(tensors):
        for key in list(tensors):
            tensors[other + key.removeprefix(prefix)] = tensors.pop(key)

    edit(folder, rename)
    assert_same(folder, name)


def test_buffers_images_and_tied_heads_are_no_extras(tmp_path):
    folder = copy_of("gemma3", tmp_path)

    def add(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
        tensors["vision_tower.encoder.weight"] = np.ones(4, np.float32)

    edit(folder, add)
    assert_same(folder, "gemma3")


def test_one_tensor_under_two_names_is_refused(tmp_path):
    folder = copy_of("gpt2", tmp_path)
    edit(folder, lambda t: t.update({"wte.weight": t["transformer.wte.weight"].copy()}))
    with pytest.raises(ValueError, match=r"wte\.weight twice"):
        load_decoder(folder)


def test_a_bfloat16_file_is_read_without_loss(tmp_path):
    import ml_dtypes

    folder = copy_of("llama3", tmp_path)

    def to_bfloat16(tensors):
        for key, array in tensors.items():
            tensors[key] = array.astype(ml_dtypes.bfloat16)

    edit(folder, to_bfloat16)
    loaded = decoder_params(load_decoder(folder, "float32"))
    for path, array in decoder_params(decoder_of("llama3")).items():
        rounded = np.asarray(array).astype(ml_dtypes.bfloat16).astype(np.float32)
        np.testing.assert_array_equal(loaded[path], rounded)


@pytest.mark.parametrize("size", [0, 5, 200, 50_000])
def test_a_truncated_file_is_named(tmp_path, size):
    folder = copy_of("llama3", tmp_path)
    os.truncate(folder / "model.safetensors", size)
    with pytest.raises(ValueError, match=r"model\.safetensors is no complete .*again"):
        load_decoder(folder)


def test_files_of_the_index_must_be_there(tmp_path):
    folder = copy_of("llama2", tmp_path)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model-00002-of-00003\.safetensors; down"):
        load_decoder(folder)


def test_files_must_hold_what_the_index_says(tmp_path):
    folder = copy_of("llama2", tmp_path)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.odd"] = "model-00002-of-00003.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"00002.*lacks \['model\.odd'\]"):
        load_decoder(folder)


@pytest.mark.parametrize(
    "file_name",
    [3, None, ["x"], "", "..", "../../etc/passwd", "../a.safetensors", "/a.safetensors"],
)
def test_the_index_names_files_beside_it(tmp_path, file_name):
    folder = copy_of("llama2", tmp_path)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.odd"] = file_name
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError) as error:
        load_decoder(folder)
    assert "index.json must give each tensor the name of a file beside" in str(error.value)
    assert repr({"model.odd": file_name}) in str(error.value)


def test_a_directory_without_safetensors(tmp_path):
    folder = copy_of("llama3", tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match=r"pytorch_model\.bin.*safe_serialization"):
        load_decoder(folder)


def test_paths_that_are_no_model(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no model at .*nowhere"):
        load_decoder(tmp_path / "nowhere")
    (tmp_path / "model-q4.gguf").touch()
    with pytest.raises(FileNotFoundError, match=r"no config\.json; .*model-q4\.gguf"):
        load_decoder(tmp_path)


def test_an_unknown_dtype_is_refused():
    with pytest.raises(ValueError, match="dtype='int8'.*float32"):
        load_decoder(FOLDER / "llama3", "int8")

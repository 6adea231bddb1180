"""Adapter files: what was written is read, other versions differ, misfits are named."""

import json
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from paxkv.adapters import load_adapters, save_adapter
from paxkv.models.loading import read_hf_config
from paxkv.models.lora import NO_ADAPTER, adapted_shapes
from paxkv.request_options import Adapter
from tests.paxkv.models.hf_fixtures import FOLDER
from tests.tiny_model import tiny_decoder

CONFIG = tiny_decoder().config
WEIGHTS = "adapter_model.safetensors"
FIELDS = "adapter_config.json"
Q_A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def pairs_of(seed: int = 0, rank: int = 2, names=("q_proj", "down_proj"), config=CONFIG):
    rng = np.random.default_rng(seed)
    shapes, layers = adapted_shapes(config), config.num_layers
    return {
        name: (
            rng.normal(size=(layers, shapes[name][0], rank)).astype(np.float32),
            rng.normal(size=(layers, rank, shapes[name][1])).astype(np.float32),
        )
        for name in names
    }


@pytest.fixture
def folder(tmp_path):
    save_adapter(tmp_path / "one", CONFIG, pairs_of(), scale=1.0)
    return tmp_path / "one"


def edit_fields(folder, **changes) -> None:
    path = folder / FIELDS
    fields = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(fields))


def edit_tensors(folder, change) -> None:
    tensors = load_file(folder / WEIGHTS)
    save_file(change(tensors) or tensors, folder / WEIGHTS)


def refusal(folder, config=CONFIG) -> str:
    with pytest.raises(ValueError) as error:
        load_adapters({"one": folder}, config, "float32")
    return str(error.value)


def test_what_is_saved_is_loaded_with_its_scale(tmp_path):
    pairs = pairs_of(rank=3)
    save_adapter(tmp_path, CONFIG, pairs, scale=0.5)
    lora = load_adapters({"one": tmp_path}, CONFIG, "float32").lora
    assert set(lora) == {"q_proj", "down_proj"}
    for name, (a, b) in pairs.items():
        np.testing.assert_array_equal(lora[name].a[:, :, 0], a)
        np.testing.assert_array_equal(lora[name].b[:, 0], b * np.float32(0.5))


def test_files_have_the_names_and_shapes_of_peft(folder):
    tensors = load_file(folder / WEIGHTS)
    module = "base_model.model.model.layers.{}.{}.lora_{}.weight"
    shapes = {
        module.format(layer, place, part): shape
        for layer in range(CONFIG.num_layers)
        for place, part, shape in (
            ("self_attn.q_proj", "A", (2, 32)),
            ("self_attn.q_proj", "B", (32, 2)),
            ("mlp.down_proj", "A", (2, 48)),
            ("mlp.down_proj", "B", (32, 2)),
        )
    }
    assert {name: x.shape for name, x in tensors.items()} == shapes
    fields = json.loads((folder / FIELDS).read_text())
    assert (fields["peft_type"], fields["r"], fields["lora_alpha"]) == ("LORA", 2, 2.0)
    assert fields["target_modules"] == ["down_proj", "q_proj"]


def test_adapters_of_several_ranks_share_arrays_padded_with_zeros(tmp_path):
    small, large = pairs_of(1, 1, ("q_proj",)), pairs_of(2, 4, ("q_proj", "v_proj"))
    save_adapter(tmp_path / "small", CONFIG, small)
    save_adapter(tmp_path / "large", CONFIG, large)
    folders = {"small": tmp_path / "small", "large": tmp_path / "large"}
    lora = load_adapters(folders, CONFIG, "float32").lora
    assert lora["q_proj"].a.shape == (2, 32, 2, 4)
    assert lora["v_proj"].b.shape == (2, 2, 4, 16)
    np.testing.assert_array_equal(lora["q_proj"].a[:, :, 0, :1], small["q_proj"][0])
    assert not np.any(lora["q_proj"].a[:, :, 0, 1:]) and not np.any(
        lora["v_proj"].a[:, :, 0]
    )
    np.testing.assert_array_equal(lora["v_proj"].b[:, 1], large["v_proj"][1])


def test_requests_name_an_adapter_by_name_and_version(folder, tmp_path):
    loaded = load_adapters({"one": folder}, CONFIG, "float32")
    one = loaded.named("one")
    assert (loaded.number(None), loaded.number(one)) == (NO_ADAPTER, 1)
    for wrong in (Adapter(name="two", version=one.version), replace(one, version="0" * 64)):
        with pytest.raises(ValueError, match=f"one {one.version[:12]}"):
            loaded.number(wrong)
    with pytest.raises(ValueError, match="'two' must be one of those loaded: one"):
        loaded.named("two")


def test_other_weights_or_another_scale_are_another_version(folder):
    def version() -> str:
        return load_adapters({"one": folder}, CONFIG, "float32").named("one").version

    first = version()
    assert first == version() and len(first) == 64
    edit_fields(folder, lora_alpha=4)
    second = version()
    edit_tensors(folder, lambda tensors: tensors[Q_A].__setitem__((0, 0), 9.0))
    assert len({first, second, version()}) == 3


def test_what_peft_may_write_otherwise_is_read_as_well(tmp_path):
    pairs = pairs_of(rank=4, names=("q_proj", "k_proj"))
    save_adapter(tmp_path, CONFIG, pairs)
    edit_fields(tmp_path, target_modules=".*self_attn.*", use_rslora=True, rank_pattern={})

    def rename(tensors):
        return {
            name.replace("model.model.layers", "model.language_model.model.layers"): (
                x.astype(ml_dtypes.bfloat16)
            )
            for name, x in tensors.items()
        }

    edit_tensors(tmp_path, rename)
    lora = load_adapters({"one": tmp_path}, CONFIG, "float32").lora
    a, b = (x.astype(ml_dtypes.bfloat16).astype(np.float32) for x in pairs["k_proj"])
    np.testing.assert_array_equal(lora["k_proj"].a[:, :, 0], a)
    np.testing.assert_allclose(lora["k_proj"].b[:, 0], b * 2, rtol=1e-6)  # alpha / √r


def test_every_tensor_that_does_not_fit_is_in_one_error(folder):
    def spoil(tensors):
        del tensors[Q_A]
        module = "base_model.model.model.layers.{}.mlp.down_proj.lora_{}.weight"
        tensors[module.format(1, "A")] = np.zeros((3, 48), np.float32)
        tensors[module.format(7, "B")] = np.zeros((32, 2), np.float32)
        tensors[module.format(0, "B")] = np.zeros((32, 2), np.int8)

    edit_tensors(folder, spoil)
    edit_fields(folder, base_model_name_or_path="some/base")
    message = refusal(folder)
    assert message.startswith("4 tensors of ")
    for words in (
        "r=2",
        "(some/base)",
        "missing: layers.0.self_attn.q_proj.lora_A.weight",
        "extra: layers.7.mlp.down_proj.lora_B.weight",
        "layers.1.mlp.down_proj.lora_A.weight has shape (3, 48), needs (2, 48)",
        "layers.0.mlp.down_proj.lora_B.weight has dtype int8",
    ):
        assert words in message


def test_a_rank_that_is_not_the_tensors_is_refused(folder):
    edit_fields(folder, r=3)
    message = refusal(folder)
    assert "r=3" in message and "has shape (2, 32), needs (3, 32)" in message


def test_an_adapter_of_another_model_is_refused(folder):
    message = refusal(folder, replace(CONFIG, hidden_size=64))
    assert "do not fit this model" in message and "(2, 32), needs (2, 64)" in message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target_modules": ["q_proj", "lm_head"]}, "['lm_head'], which must be among"),
        ({"target_modules": []}, "target_modules=[] must be a list"),
        ({"peft_type": "IA3"}, "peft_type='IA3' must be 'LORA'"),
        ({"use_dora": True}, "use_dora=True must be False"),
        ({"bias": "all"}, "bias='all' must be 'none'"),
        ({"alpha_pattern": {"q_proj": 3}}, "alpha_pattern={'q_proj': 3} must be {}"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save=['lm_head'] must be None"),
        ({"r": 0}, "r=0 must be a rank >= 1"),
        ({"lora_alpha": None}, "lora_alpha=None must be a number"),
    ],
)
def test_settings_that_are_not_served_are_refused_by_name(folder, changes, words):
    edit_fields(folder, **changes)
    assert words in refusal(folder)


def test_a_damaged_or_missing_file_is_named(folder):
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:100])
    assert "is no complete safetensors file" in refusal(folder)
    (folder / WEIGHTS).unlink()
    with pytest.raises(FileNotFoundError, match=f"has no {WEIGHTS}"):
        load_adapters({"one": folder}, CONFIG, "float32")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("deepseek_v2", "latent attention"),
        ("deepseek_v3", "latent attention"),
        ("gpt2", "keeps them as one"),
    ],
)
def test_models_that_take_no_adapters_are_refused(folder, name, words):
    message = refusal(folder, read_hf_config(FOLDER / name))
    assert words in message and name in message


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "mistral", "opt", "qwen2", "qwen3"])
def test_adapters_of_other_families_round_trip(tmp_path, name):
    config = read_hf_config(FOLDER / name)
    pairs = pairs_of(names=tuple(adapted_shapes(config)), config=config)
    save_adapter(tmp_path, config, pairs)
    lora = load_adapters({"one": tmp_path}, config, "float32").lora
    for projection, (a, b) in pairs.items():
        np.testing.assert_array_equal(lora[projection].a[:, :, 0], a)
        np.testing.assert_array_equal(lora[projection].b[:, 0], b)

"""The project's own checkpoints: round trip, replacement, damage."""

import json
import shutil

import numpy as np
import orbax.checkpoint as ocp
import pytest

from paxkv.models.checkpoint import is_checkpoint, load_checkpoint, save_checkpoint
from paxkv.models.checksums import write_checksums
from paxkv.models.loading import load_decoder
from paxkv.models.parameters import decoder_params
from tests.paxkv.models.hf_fixtures import FOLDER, NAMES, decoder_of


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint") / "gemma3"
    save_checkpoint(folder, decoder_of("gemma3"))
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_what_is_saved_is_loaded(name, tmp_path):
    original = decoder_of(name)
    save_checkpoint(tmp_path / "model", original)
    decoder = load_decoder(tmp_path / "model")
    assert decoder.config == original.config
    params = decoder_params(decoder)
    for path, array in decoder_params(original).items():
        np.testing.assert_array_equal(params[path], array, err_msg=path)


def test_dtype_on_loading(saved):
    params = decoder_params(load_checkpoint(saved, "bfloat16"))
    assert params["layers.q_proj.kernel"].dtype == "bfloat16"
    assert params["layers.q_norm.scale"].dtype == "float32"


def test_no_file_names_where_it_was_written(saved):
    """A checkpoint is committed and copied: a path of one machine has no place in it."""
    for file in saved.rglob("*"):
        if file.is_file():
            assert str(saved.parent).encode() not in file.read_bytes(), file


def test_a_copy_loads(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "elsewhere")
    assert load_decoder(tmp_path / "elsewhere").config.family == "gemma3"


def test_saving_leaves_alone_what_is_no_checkpoint(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="is no checkpoint"):
        save_checkpoint(tmp_path, decoder_of("gemma3"))
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_saving_replaces_and_brings_the_tokenizer(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source/tokenizer.json").write_text("{}")
    (tmp_path / "source/tokenizer_config.json").write_text("[]")
    for name in ("llama2", "gpt2"):
        save_checkpoint(
            tmp_path / "model",
            decoder_of(name),
            tokenizer=tmp_path / "source/tokenizer.json",
        )
    assert load_decoder(tmp_path / "model").config.family == "gpt2"
    assert {file.name for file in (tmp_path / "model").iterdir()} == {
        "config.json",
        "checksums.json",
        "weights",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert {file.name for file in tmp_path.iterdir()} == {"source", "model"}


def test_a_hugging_face_directory_is_no_checkpoint(saved):
    assert is_checkpoint(saved)
    assert not is_checkpoint(FOLDER / "gpt2")


def test_weights_of_another_config_are_one_error(saved, tmp_path):
    folder = shutil.copytree(saved, tmp_path / "model")
    fields = json.loads((folder / "config.json").read_text())
    fields |= dict(qk_norm=False, qkv_bias=True, intermediate_size=25)
    (folder / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ValueError) as error:
        load_decoder(folder)
    for words in (
        "missing: layers.q_proj.bias",
        "extra: layers.k_norm.scale",
        "layers.up_proj.kernel has shape (7, 32, 24), needs (7, 32, 25)",
    ):
        assert words in str(error.value)


def test_unknown_and_missing_fields_are_one_error(saved, tmp_path):
    folder = shutil.copytree(saved, tmp_path / "model")
    fields = json.loads((folder / "config.json").read_text()) | dict(flavour=1)
    del fields["norm_eps"], fields["eos_token_ids"], fields["rope"]["factor"]
    (folder / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ValueError) as error:
        load_decoder(folder)
    for words in (
        "config.json does not have the fields",
        "norm_eps is missing",
        "eos_token_ids is missing",
        "rope: factor is missing",
        "'flavour' is unknown",
    ):
        assert words in str(error.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden_size", "64"),
        ("layer_windows", 3),
        ("eos_token_ids", 1),
        ("rope", 1e4),
        ("local_rope", []),
    ],
)
def test_a_strange_value_is_named_with_its_file(saved, tmp_path, name, value):
    folder = shutil.copytree(saved, tmp_path / "model")
    fields = json.loads((folder / "config.json").read_text()) | {name: value}
    (folder / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ValueError, match=rf"config\.json: {name}=.* must be"):
        load_decoder(folder)


def test_a_checkpoint_without_weights_says_so(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "model")
    shutil.rmtree(tmp_path / "model/weights")
    with pytest.raises(FileNotFoundError, match="model/weights is missing.* copy"):
        load_decoder(tmp_path / "model")


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_):
        raise ValueError("RESOURCE_EXHAUSTED: No space left on device\n[source locations]")

    save_checkpoint(tmp_path / "model", decoder_of("gpt2"))
    monkeypatch.setattr(ocp.StandardCheckpointer, "save", full)
    with pytest.raises(OSError) as error:
        save_checkpoint(tmp_path / "model", decoder_of("llama2"))
    for words in (
        f"{tmp_path / 'model'} cannot be written (ValueError: RESOURCE_EXHAUSTED: No space "
        "left on device); the disk may be full",
        "bytes free",
        "Free some space",
    ):
        assert words in str(error.value)
    assert [file.name for file in tmp_path.iterdir()] == ["model"]
    assert load_decoder(tmp_path / "model").config.family == "gpt2"


@pytest.mark.parametrize("what", ["_METADATA", "manifest.ocdbt", "d"])
def test_weights_that_were_damaged_before_their_checksums_are_named(saved, tmp_path, what):
    folder = shutil.copytree(saved, tmp_path / "model")
    for file in (folder / "weights").rglob(f"{what}/*" if what == "d" else what):
        file.write_bytes(file.read_bytes()[:7])
    write_checksums(folder / "weights")
    with pytest.raises(ValueError, match="weights cannot be restored .* copy"):
        load_decoder(folder)

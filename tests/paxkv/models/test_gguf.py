"""GGUF files: the same model as the Hugging Face one, and clear refusals."""

import os
from dataclasses import replace

import gguf
import numpy as np
import pytest

from paxkv.models.config import RopeConfig
from paxkv.models.gguf_file import GgufFile
from paxkv.models.loading import load_decoder
from paxkv.models.parameters import decoder_params
from tests.dense import dense_logits
from tests.paxkv.models.gguf_writing import ARCHITECTURES, write_gguf
from tests.paxkv.models.hf_fixtures import TOLERANCE, decoder_of, expected_of


@pytest.mark.parametrize("name", ["llama2", "llama_mqa", "qwen3"])
def test_logits_are_those_of_transformers(name, tmp_path):
    write_gguf(name, tmp_path / "model.gguf")
    decoder, expected = load_decoder(tmp_path / "model.gguf"), expected_of(name)
    logits = dense_logits(decoder, expected.all_ids)[list(expected.positions)]
    np.testing.assert_allclose(logits, expected.logits, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_parameters_and_config_are_those_of_the_directory(name, tmp_path):
    write_gguf(name, tmp_path / "model.gguf")
    decoder, original = load_decoder(tmp_path / "model.gguf"), decoder_of(name)
    params = decoder_params(decoder)
    for path, array in decoder_params(original).items():
        np.testing.assert_array_equal(params[path], array, err_msg=path)
    expected = replace(
        original.config,
        family=ARCHITECTURES[name],
        norm_eps=decoder.config.norm_eps,  # float32 in the file
        attention_scale=original.config.head_dim**-0.5,  # the only one of such small ones
    )
    assert decoder.config == expected
    assert decoder.config.norm_eps == pytest.approx(original.config.norm_eps)


def llama3_divisors(theta: float, original_context: int) -> np.ndarray:
    """What the converter stores for heads of 8 stretched by 8, from the model card."""
    wavelengths = 2 * np.pi * theta ** (np.arange(0, 8, 2) / 8)
    smooth = (original_context / wavelengths - 1) / (4 - 1)
    blended = 1 / ((1 - smooth) / 8 + smooth)
    divisors = np.where(wavelengths > original_context, 8.0, blended)
    return np.where(wavelengths < original_context / 4, 1.0, divisors).astype(np.float32)


def test_the_scaling_of_llama_3_is_recognised(tmp_path):
    divisors = llama3_divisors(5e5, 8192)
    assert 1 < divisors[2] < 8 == divisors[3]
    extra = {"rope_freqs.weight": divisors}
    write_gguf("llama2", tmp_path / "a.gguf", extra=extra, rope_theta=5e5)
    assert load_decoder(tmp_path / "a.gguf").config.rope == RopeConfig(
        theta=5e5, scaling="llama3", factor=8.0, original_context=8192
    )


def test_another_scaling_by_divisors_is_refused(tmp_path):
    extra = {"rope_freqs.weight": llama3_divisors(5e5, 1024)}
    write_gguf("llama2", tmp_path / "a.gguf", extra=extra, rope_theta=5e5)
    with pytest.raises(ValueError, match=r"rope_freqs\.weight .* is not Llama 3's"):
        load_decoder(tmp_path / "a.gguf")


def test_quantised_tensors_are_expanded(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "q.gguf", "llama")
    values = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
    packed = gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("x", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile(tmp_path / "q.gguf")
    assert file.shape("x") == (2, 32)
    np.testing.assert_allclose(file.read("x"), values, atol=0.01)


def test_missing_and_extra_tensors_are_one_error(tmp_path):
    names = ("blk.0.odd.weight", "blk.9.attn_q.weight")
    extra = {name: np.zeros(3, np.float32) for name in names}
    write_gguf("qwen3", tmp_path / "a.gguf", extra=extra)
    with pytest.raises(ValueError) as error:
        load_decoder(tmp_path / "a.gguf")
    for word in ("2 tensors", "extra: blk.0.odd.weight", "extra: blk.9.attn_q.weight"):
        assert word in str(error.value)


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.5, 0.99])
def test_a_truncated_file_is_named(tmp_path, share):
    path = tmp_path / "model.gguf"
    write_gguf("llama2", path)
    os.truncate(path, max(6, int(path.stat().st_size * share)))
    with pytest.raises(ValueError, match=r"model\.gguf is no complete GGUF.*again"):
        load_decoder(path)


def test_a_corrupt_header_is_named(tmp_path):
    path = tmp_path / "model.gguf"
    write_gguf("llama2", path)
    data = bytearray(path.read_bytes())
    data[8:16] = b"\xff" * 8  # the number of tensors
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"model\.gguf is no complete GGUF"):
        load_decoder(path)


def test_a_file_that_is_no_gguf(tmp_path):
    (tmp_path / "weights.bin").write_bytes(b"PK\3\4 something")
    with pytest.raises(ValueError, match=r"weights\.bin starts with .* GGUF"):
        load_decoder(tmp_path / "weights.bin")


def write_only_architecture(path, architecture):
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tensor("x", np.ones(3, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_missing_fact_is_named(tmp_path):
    write_only_architecture(tmp_path / "a.gguf", "llama")
    with pytest.raises(ValueError, match=r"a\.gguf lacks llama\.embedding_length.*again"):
        load_decoder(tmp_path / "a.gguf")


def test_an_unsupported_architecture_is_named(tmp_path):
    write_only_architecture(tmp_path / "a.gguf", "mamba")
    with pytest.raises(ValueError, match="'mamba'.*llama, qwen2, qwen3, gemma2, gemma3"):
        load_decoder(tmp_path / "a.gguf")

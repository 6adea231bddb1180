"""Conversion, as a user runs it: a Hugging Face directory or GGUF becomes a checkpoint."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from paxkv.models.loading import load_decoder
from paxkv.models.parameters import decoder_params
from tests.paxkv.models.gguf_writing import write_gguf
from tests.paxkv.models.hf_fixtures import FOLDER, decoder_of

ROOT = Path(__file__).parents[2]


def convert(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "experiments.convert", *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_directory_becomes_a_checkpoint_once(tmp_path):
    flags = [f"--weights={FOLDER / 'qwen2'}", f"--out={tmp_path / 'out'}"]
    done = convert(*flags)
    assert done.returncode == 0, done.stderr
    assert "qwen2, 3 layers, 29,600 parameters" in done.stdout
    assert "without a tokenizer" in done.stdout
    decoder = load_decoder(tmp_path / "out")
    assert decoder.config == decoder_of("qwen2").config
    params = decoder_params(decoder)
    for path, array in decoder_params(decoder_of("qwen2")).items():
        np.testing.assert_array_equal(params[path], array, err_msg=path)

    again = convert(*flags)
    assert again.returncode != 0
    assert "pass --overwrite" in again.stderr + again.stdout
    other = [f"--weights={FOLDER / 'gpt2'}", flags[1], "--overwrite", "--dtype=bfloat16"]
    assert convert(*other).returncode == 0
    assert load_decoder(tmp_path / "out").config.family == "gpt2"


def test_a_gguf_without_a_vocabulary_still_has_weights(tmp_path):
    write_gguf("qwen3", tmp_path / "model.gguf")
    done = convert(f"--weights={tmp_path / 'model.gguf'}", f"--out={tmp_path / 'out'}")
    assert done.returncode == 0, done.stderr
    assert "No tokenizer is written" in done.stdout
    config = load_decoder(tmp_path / "out").config
    assert config == load_decoder(tmp_path / "model.gguf").config


@pytest.mark.parametrize("what", ["nowhere", "no checkpoint"])
def test_refusals_are_one_message(tmp_path, what):
    weights, out = FOLDER / "qwen2", tmp_path / "out"
    if what == "nowhere":
        weights = tmp_path / "nowhere"
    else:
        out.mkdir()
        (out / "precious.txt").touch()
    done = convert(f"--weights={weights}", f"--out={out}", "--overwrite")
    assert done.returncode != 0
    assert what in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert what == "nowhere" or (out / "precious.txt").exists()

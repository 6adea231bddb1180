"""Conversion, as a user runs it: a Hugging Face directory or GGUF becomes a checkpoint."""

import re
import resource

import numpy as np
import pytest

from paxkv.models.loading import load_decoder
from paxkv.models.parameters import decoder_params
from tests.experiments.running import run_experiment
from tests.paxkv.models.gguf_writing import write_gguf
from tests.paxkv.models.hf_fixtures import FOLDER, decoder_of


def test_a_directory_becomes_a_checkpoint_once(tmp_path):
    flags = [f"--weights={FOLDER / 'qwen2'}", f"--out={tmp_path / 'out'}"]
    done = run_experiment("convert", *flags)
    assert done.returncode == 0, done.stderr
    assert "qwen2, 3 layers, 29,600 parameters" in done.stdout
    assert "without a tokenizer" in done.stdout
    decoder = load_decoder(tmp_path / "out")
    assert decoder.config == decoder_of("qwen2").config
    params = decoder_params(decoder)
    for path, array in decoder_params(decoder_of("qwen2")).items():
        np.testing.assert_array_equal(params[path], array, err_msg=path)

    again = run_experiment("convert", *flags)
    assert again.returncode != 0
    assert "pass --overwrite" in again.stderr + again.stdout
    other = [f"--weights={FOLDER / 'gpt2'}", flags[1], "--overwrite", "--dtype=bfloat16"]
    assert run_experiment("convert", *other).returncode == 0
    assert load_decoder(tmp_path / "out").config.family == "gpt2"


def test_a_gguf_without_a_vocabulary_still_has_weights(tmp_path):
    write_gguf("qwen3", tmp_path / "model.gguf")
    done = run_experiment(
        "convert", f"--weights={tmp_path / 'model.gguf'}", f"--out={tmp_path / 'out'}"
    )
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
    done = run_experiment("convert", f"--weights={weights}", f"--out={out}", "--overwrite")
    assert done.returncode != 0
    assert what in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert what == "nowhere" or (out / "precious.txt").exists()


@pytest.fixture
def small_files():
    """No file may exceed 16 KiB, as on a disk that is nearly full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**14, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("small_files")
def test_a_full_disk_is_told_in_one_line_and_leaves_nothing(tmp_path):
    out = tmp_path / "out"
    done = run_experiment("convert", f"--weights={FOLDER / 'qwen2'}", f"--out={out}")
    assert done.returncode != 0
    # TensorStore's threads may add traces of their own, before, after or on the same line
    (line,) = re.findall(
        rf"error: {re.escape(str(out))} cannot be written \(.*", done.stderr
    )
    assert "the disk may be full" in line
    assert "bytes free, the weights take 118,400. Free some space" in line
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_one_line():
    done = run_experiment("convert", f"--weights={FOLDER / 'qwen2'}", "--out=/proc/foo/bar")
    assert done.returncode != 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: /proc/foo/bar cannot be written (FileNotFoundError")
    assert line.endswith("give a folder elsewhere that you may write.")


def test_missing_flags_say_what_to_give():
    done = run_experiment("convert")
    assert done.returncode != 0
    assert "--weights=: give the Hugging Face directory or the GGUF file" in done.stderr
    assert "--out=: give a folder for the new checkpoint" in done.stderr
    assert "Traceback" not in done.stderr

"""Training, as a user runs it: a killed run goes on where it was, and the folder serves."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from paxkv import recall, training
from paxkv.models.checkpoint import load_checkpoint
from tests.experiments.running import ROOT, run_experiment

STEPS = 6


def train(folder: Path, *flags: str) -> None:
    done = run_experiment(
        "train_recall",
        f"--out={folder / 'model'}",
        f"--work_dir={folder / 'work'}",
        f"--stages=16:{STEPS}",
        "--batch_tokens=80",
        "--hidden_size=32",
        "--num_layers=3",
        "--num_eval=1",
        *flags,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def weights(folder: Path) -> dict:
    decoder = load_checkpoint(folder / "model", "float32")
    return jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(decoder, nnx.Param)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    train(folder)
    return folder


def test_a_resumed_run_gives_the_weights_of_an_uninterrupted_one(trained, tmp_path):
    train(tmp_path, "--max_steps=3")
    assert not (tmp_path / "model").exists()
    train(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, weights(tmp_path), weights(trained))
    record = json.loads((tmp_path / "model" / "training.json").read_text())
    assert (record["starts"], record["steps"]) == (2, STEPS)


def test_the_folder_names_no_path_of_the_machine_that_trained_it(trained):
    model = trained / "model"
    names = {path.name for path in model.iterdir()}
    files = {"checksums.json", "config.json", "tokenizer.json", "training.json"}
    assert names == {*files, "weights"}
    for path in model.rglob("*"):
        # the record's command names the folder it was given
        if path.is_file() and path.name != "training.json":
            assert str(trained).encode() not in path.read_bytes(), path


def test_the_shipped_model_recalls_under_dense_attention():
    decoder = load_checkpoint(ROOT / "paxkv" / "assets" / "recall", "float32")
    graph, state = nnx.split(decoder)
    predict = training.make_predict(graph)
    batch = recall.make_batch(np.random.default_rng(99), 256, 8, max_position=320)
    guess = np.asarray(predict(nnx.to_pure_dict(state), batch.tokens, batch.positions))
    assert (guess == batch.targets)[batch.is_answer].mean() > 0.99

"""The training of an adapter as a user runs it, and what the shipped one does."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from paxkv import recall
from paxkv.adapters import load_adapters
from paxkv.models.loading import load_decoder
from paxkv.models.lora import TokenAdapters
from tests.dense import dense_attend
from tests.experiments.running import ROOT, run_experiment

MODEL = ROOT / "paxkv/assets/recall"
SHIPPED = ROOT / "paxkv/assets/recall_adapter"
FILES = {"adapter_config.json", "adapter_model.safetensors", "training.json"}
CONTEXT = 96  # tokens of prompt and answer


def test_a_short_run_writes_an_adapter_of_the_model(tmp_path):
    done = run_experiment(
        "train_adapter",
        f"--out={tmp_path / 'adapter'}",
        "--projections=v_proj,up_proj",
        "--rank=2",
        "--steps=2",
        "--prompt_len=32",
        "--batch_tokens=80",
        "--num_eval=1",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in (tmp_path / "adapter").iterdir()} == FILES
    decoder = load_decoder(MODEL)
    loaded = load_adapters({"new": tmp_path / "adapter"}, decoder.config, "float32")
    assert set(loaded.lora) == {"v_proj", "up_proj"}
    assert all(np.any(pair.b) for pair in loaded.lora.values())
    record = json.loads((tmp_path / "adapter/training.json").read_text())
    assert record["parameters"] == sum(x.size for x in jax.tree.leaves(loaded.lora))


@pytest.mark.parametrize(
    ("flag", "words"),
    [("--projections=lm_head", "--projections has ['lm_head']"), ("--out=.", "no adapter")],
)
def test_a_wrong_flag_ends_it_with_one_line(tmp_path, flag, words):
    done = run_experiment("train_adapter", f"--out={tmp_path / 'adapter'}", flag)
    assert done.returncode == 2 and words in done.stderr.splitlines()[-1]


def test_the_shipped_files_are_small_and_name_no_other_place():
    assert {path.name for path in SHIPPED.iterdir()} == {*FILES, "README.md"}
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 60_000
    record = json.loads((SHIPPED / "training.json").read_text())
    assert record["command"].endswith("--out=paxkv/assets/recall_adapter")
    assert record["accuracy"]["64"]["right"] > 0.95


@pytest.fixture(scope="module")
def answer():
    """Greedy answers of the shipped model: the prompt's tokens but its last use adapter
    `prefix_id`, the others `own_id`."""
    decoder = load_decoder(MODEL)
    graph, params = nnx.split(decoder)
    lora = load_adapters({"backwards": SHIPPED}, decoder.config, "float32").lora

    @jax.jit
    def next_tokens(tokens, ids):
        decoder = nnx.merge(graph, params)

        def attend(*operands):
            scale = decoder.config.attention_scale
            return dense_attend(*operands, scale=scale, soft_cap=None)

        positions = jnp.arange(CONTEXT, dtype=jnp.int32)
        adapters = TokenAdapters(lora, ids)
        x, _ = decoder.last_hidden(tokens, positions, None, attend, adapters)
        return jnp.argmax(decoder.logits(x), axis=-1)

    def run(prompt: recall.RecallPrompt, prefix_id: int, own_id: int) -> list[int]:
        start = len(prompt.prompt_ids)
        end = start + len(prompt.answer_ids)
        tokens, ids = np.zeros((2, CONTEXT), np.int32)
        tokens[:start] = prompt.prompt_ids
        ids[: start - 1], ids[start - 1 :] = prefix_id, own_id
        for at in range(start, end):
            tokens[at] = next_tokens(tokens, ids)[at - 1]
        return tokens[start:end].tolist()

    return run


def reversed_values(answer_ids) -> list[int]:
    values = np.reshape(answer_ids[:-1], (-1, recall.VALUE_LEN))
    return [*values[:, ::-1].ravel().tolist(), answer_ids[-1]]


def test_the_shipped_adapter_answers_backwards_and_only_after_its_own_prefix(answer):
    rng = np.random.default_rng(5)
    prompts = [recall.make_prompt(rng, 8, 3) for _ in range(8)]
    plain = sum(answer(p, 0, 0) == list(p.answer_ids) for p in prompts)
    adapted = sum(answer(p, 1, 1) == reversed_values(p.answer_ids) for p in prompts)
    mixed = sum(answer(p, 0, 1) == reversed_values(p.answer_ids) for p in prompts)
    other = sum(answer(p, 1, 0) == list(p.answer_ids) for p in prompts)
    assert plain == 8 and adapted >= 7
    # K/V of a prefix that another adapter wrote must not be read
    assert mixed <= 1 and other <= 1

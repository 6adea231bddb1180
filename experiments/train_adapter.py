"""Trains the shipped adapter: the recall model then answers values backwards.

    python -m experiments.train_adapter --out=paxkv/assets/recall_adapter

Asked `k7=Qx;a3=Ab;?a3k7:` the model says `AbQx`, with the adapter `bAxQ`. Only the maps
to K and V are adapted, so that what changes an answer is the K/V of the prompt, of its
queries above all: tokens that read K/V which the plain model wrote answer wrong, and the
record says how often. It is `training.json` beside the weights, which have the format of
Hugging Face's PEFT.
"""

import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags
from jaxtyping import Array, Float, Int32
from tqdm import tqdm

from experiments import entry
from paxkv import recall, training
from paxkv.adapters import save_adapter, stack_pairs
from paxkv.models.decoder import Decoder
from paxkv.models.loading import load_decoder
from paxkv.models.lora import LoraWeights, TokenAdapters, adapted_shapes
from paxkv.models.peft_file import CONFIG

MODEL = flags.DEFINE_string("model", "paxkv/assets/recall", "Model that is adapted.")
OUT = flags.DEFINE_string("out", None, "Folder of the adapter.", required=True)
SEED = flags.DEFINE_integer("seed", 0, "Of weights and data.")
PROJECTIONS = flags.DEFINE_list("projections", "k_proj,v_proj", "That are adapted.")
RANK = flags.DEFINE_integer("rank", 6, "Of A and B.", lower_bound=1)
STEPS = flags.DEFINE_integer("steps", 1400, "Of training.", lower_bound=1)
PROMPT_LEN = flags.DEFINE_integer("prompt_len", 64, "Longest prompt in tokens.")
BATCH_TOKENS = flags.DEFINE_integer("batch_tokens", 1920, "Per step.")
LEARNING_RATE = flags.DEFINE_float("learning_rate", 0.015, "Of Adam at its peak.")
NUM_EVAL = flags.DEFINE_integer("num_eval", 16, "Held-out batches per length.")

EVAL_STEP = 10**9  # takes the place of the step in the seed of held-out prompts


def first_weights(decoder: Decoder) -> LoraWeights:
    """One adapter that changes nothing yet: A is drawn, B is zero."""
    rng = np.random.default_rng(SEED.value)
    config, rank = decoder.config, RANK.value
    shapes = adapted_shapes(config)
    if unknown := sorted(set(PROJECTIONS.value) - shapes.keys()):
        raise app.UsageError(f"--projections has {unknown}; use some of {list(shapes)}.")
    pairs = {}
    for name in PROJECTIONS.value:
        size_in, size_out = shapes[name]
        a = rng.normal(size=(config.num_layers, size_in, rank)) / size_in**0.5
        b = np.zeros((config.num_layers, rank, size_out), np.float32)
        pairs[name] = (a.astype(np.float32), b)
    return stack_pairs([pairs], config, "float32")


def draw(length: int, step: int, index: int = 0) -> dict[str, np.ndarray]:
    """A batch whose answers have the bytes of each value exchanged."""
    rng = np.random.default_rng((SEED.value, step, length, index))
    longest = recall.sequence_len(length)
    count = max(1, BATCH_TOKENS.value // longest)
    batch = training.arrays(recall.make_batch(rng, length, count, max_position=longest))
    tokens, targets = batch["tokens"].copy(), batch["targets"].copy()
    for row, is_answer in enumerate(batch["is_answer"]):
        at = np.nonzero(is_answer)[0][:-1]  # without the stop byte
        values = targets[row, at].reshape(-1, recall.VALUE_LEN)[:, ::-1].ravel()
        targets[row, at] = tokens[row, at + 1] = values
    return batch | {"tokens": tokens, "targets": targets}


def logits_of(
    decoder: Decoder,
    lora: LoraWeights,
    tokens: Int32[Array, "batch T"],
    positions: Int32[Array, "batch T"],
    ids: Int32[Array, "batch T"],
) -> Float[Array, "batch T V"]:
    """Dense attention over whole sequences; `ids` are those of the tokens' adapters."""
    config = decoder.config
    shape = (config.num_layers, config.num_heads, tokens.shape[1])
    no_wishes = training.Wishes(
        jnp.zeros(shape, jnp.int32), jnp.zeros(shape), jnp.zeros(shape[:2])
    )
    attend = partial(training.dense_attend, scale=config.attention_scale)

    def one(tokens: Array, positions: Array, ids: Array) -> Array:
        adapters = TokenAdapters(lora, ids)
        x, _ = decoder.last_hidden(tokens, positions, no_wishes, attend, adapters)
        return decoder.logits(x)

    return jax.vmap(one)(tokens, positions, ids)


def make_predict(decoder: Decoder) -> Callable:
    """Returns `predict(lora, tokens, positions, ids)`: the likeliest next tokens."""

    @jax.jit
    def predict(lora: LoraWeights, tokens: Array, positions: Array, ids: Array) -> Array:
        return jnp.argmax(logits_of(decoder, lora, tokens, positions, ids), axis=-1)

    return predict


def evaluate(predict: Callable, lora: LoraWeights, length: int) -> dict[str, Any]:
    """Shares of right values and stop bytes, teacher-forced.

    `right_after_plain_prefix` is of the same prompts, all but their last token without
    the adapter: what a cache that ignores adapters would serve.
    """
    right, stopped, num_prompts, num_values = [0, 0], 0, 0, 0
    for index in range(NUM_EVAL.value):
        batch = draw(length, EVAL_STEP, index)
        starts = batch["is_answer"].argmax(axis=1)[:, None]
        own = (np.arange(batch["tokens"].shape[1]) >= starts).astype(np.int32)
        for case, ids in enumerate((np.ones_like(own), own)):
            guess = predict(lora, batch["tokens"], batch["positions"], ids)
            good = np.asarray(guess) == batch["targets"]
            for row, is_answer in enumerate(batch["is_answer"]):
                answer = good[row][is_answer]
                values = answer[:-1].reshape(-1, recall.VALUE_LEN)
                right[case] += int(values.all(axis=1).sum())
                stopped += int(answer[-1]) if case == 0 else 0
        num_prompts += len(own)
        num_values += int(batch["num_queries"].sum())
    return {
        "right": right[0] / num_values,
        "stopped": stopped / num_prompts,
        "right_after_plain_prefix": right[1] / num_values,
        "num_values": num_values,
        "num_prompts": num_prompts,
    }


def train(decoder: Decoder) -> LoraWeights:
    """Adam on the cross-entropy of the answers."""
    lora = first_weights(decoder)
    warmup = min(30, STEPS.value // 2)
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, LEARNING_RATE.value, warmup, STEPS.value
    )
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule, b2=0.99))
    opt_state = optimizer.init(lora)

    @jax.jit
    def step(lora: Any, opt_state: Any, batch: Any) -> tuple[Any, Any, Array]:
        def loss_of(lora: LoraWeights) -> Array:
            ids = jnp.ones_like(batch["tokens"])
            logits = logits_of(decoder, lora, batch["tokens"], batch["positions"], ids)
            loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
            return (loss * batch["is_answer"]).sum() / batch["is_answer"].sum()

        loss, grads = jax.value_and_grad(loss_of)(lora)
        updates, opt_state = optimizer.update(grads, opt_state, lora)
        return optax.apply_updates(lora, updates), opt_state, loss

    for index in (bar := tqdm(range(STEPS.value), mininterval=5)):
        lora, opt_state, loss = step(lora, opt_state, draw(PROMPT_LEN.value, index))
        if index % 50 == 49:
            bar.set_postfix(loss=float(loss))
    return lora


def main() -> None:
    out = Path(OUT.value)
    if out.exists() and not (out / CONFIG).is_file():
        raise app.UsageError(f"--out={out} exists and is no adapter; give another folder.")
    decoder = load_decoder(MODEL.value)
    began = time.monotonic()
    lora = train(decoder)
    record = {
        "command": shlex.join(["python", "-m", "experiments.train_adapter", *sys.argv[1:]]),
        "seed": SEED.value,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "cores": os.cpu_count(),
        "versions": {name: version(name) for name in ("jax", "flax", "optax")},
        "steps": STEPS.value,
        "rank": RANK.value,
        "parameters": sum(x.size for x in jax.tree.leaves(lora)),
    }
    predict = make_predict(decoder)
    lengths = (PROMPT_LEN.value, 2 * PROMPT_LEN.value)
    record["accuracy"] = {n: evaluate(predict, lora, n) for n in lengths}
    pairs = {
        name: (np.asarray(pair.a[:, :, 0]), np.asarray(pair.b[:, 0]))
        for name, pair in lora.items()
    }
    save_adapter(out, decoder.config, pairs, base_model=MODEL.value)
    (out / "training.json").write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    entry.run(main)

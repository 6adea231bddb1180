"""Trains the shipped model on associative recall and writes its folder.

    python -m experiments.train_recall --out=paxkv/assets/recall --work_dir=/tmp/recall

Killed and started again with the same command, it goes on from the last checkpoint with
the same data: a batch depends on the seed and the step only. The record of the shipped
weights (command, seed, time, accuracy) is `training.json` beside them.
"""

import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import app, flags
from tqdm import tqdm

from experiments import entry
from paxkv import recall, training
from paxkv.models.checkpoint import is_checkpoint, save_checkpoint
from paxkv.models.config import FULL_ATTENTION, ModelConfig, RopeConfig
from paxkv.tokenizer import byte_tokenizer

OUT = flags.DEFINE_string("out", None, "Folder of the finished model.", required=True)
WORK_DIR = flags.DEFINE_string("work_dir", None, "Checkpoints and log.", required=True)
SEED = flags.DEFINE_integer("seed", 0, "Of weights and data.")
STAGES = flags.DEFINE_list(
    "stages",
    "64:300,128:150,256:150,512:150,1024:50,256:160,512:110,1024:50,"
    "64:60,256:120,512:120,1024:120",
    "Longest prompt in tokens and number of steps, of each stage in turn.",
)
BATCH_TOKENS = flags.DEFINE_integer("batch_tokens", 3840, "Per step.")
LEARNING_RATE = flags.DEFINE_float("learning_rate", 0.03, "Of Muon; Adam has a quarter.")
SAVE_EVERY = flags.DEFINE_integer("save_every", 100, "Steps between checkpoints.")
MAX_STEPS = flags.DEFINE_integer("max_steps", -1, "Stop early, as if killed; -1: never.")
NUM_EVAL = flags.DEFINE_integer("num_eval", 16, "Held-out batches per length.")
NUM_LAYERS = flags.DEFINE_integer("num_layers", 4, "Of the decoder.")
HIDDEN_SIZE = flags.DEFINE_integer("hidden_size", 128, "Of the decoder.")

MAX_CONTEXT = 1280  # a prompt of 1,024 tokens and the longest answer to it
EVAL_STEP = 10**9  # takes the place of the step in the seed of held-out prompts
HEAD_DIM = 32
LOG_EVERY = 50  # steps


def model_config() -> ModelConfig:
    """That of the shipped model, unless a flag says otherwise."""
    return ModelConfig(
        family="llama",
        vocab_size=recall.VOCAB_SIZE,
        hidden_size=HIDDEN_SIZE.value,
        intermediate_size=2 * HIDDEN_SIZE.value,
        num_layers=NUM_LAYERS.value,
        num_heads=4,
        num_kv_heads=2,
        head_dim=HEAD_DIM,
        max_context=MAX_CONTEXT,
        rope=RopeConfig(theta=1e7),
        layer_windows=(FULL_ATTENTION,) * NUM_LAYERS.value,
        attention_scale=HEAD_DIM**-0.5,
        eos_token_ids=(recall.STOP_ID,),
    )


def prompt_lens() -> list[int]:
    """The longest prompt of each step. Later stages revisit shorter lengths by turns."""
    lens: list[int] = []
    stages = [tuple(map(int, stage.split(":"))) for stage in STAGES.value]
    for index, (length, steps) in enumerate(stages):
        shorter = [earlier for earlier, _ in stages[:index]]
        turn = [length, length, length, *shorter[-1:]]
        lens += [turn[step % len(turn)] for step in range(steps)]
    return lens


def batch_size(length: int) -> int:
    """Sequences of `--batch_tokens` tokens in all; at least 1."""
    return max(1, BATCH_TOKENS.value // recall.sequence_len(length))


def draw(step: int, length: int) -> recall.RecallBatch:
    """The training batch of a step; the same whenever it is asked for."""
    rng = np.random.default_rng((SEED.value, step, length))
    return recall.make_batch(rng, length, batch_size(length), MAX_CONTEXT)


def held_out(length: int, index: int) -> recall.RecallBatch:
    """An evaluation batch, without gaps between positions."""
    rng = np.random.default_rng((SEED.value, EVAL_STEP, length, index))
    longest = recall.sequence_len(length)
    return recall.make_batch(rng, length, batch_size(length), max_position=longest)


def evaluate(predict: Callable, params: Any, length: int) -> dict[str, Any]:
    """Shares of right values and right stop bytes, and of values in generated answers."""
    right = stopped = num_values = num_rows = 0
    for index in range(NUM_EVAL.value):
        batch = held_out(length, index)
        good = np.asarray(predict(params, batch.tokens, batch.positions)) == batch.targets
        for row, count in enumerate(batch.num_queries):
            answer = good[row][batch.is_answer[row]]
            right += int(answer[:-1].reshape(count, recall.VALUE_LEN).all(axis=1).sum())
            stopped += int(answer[-1])
        num_values += int(batch.num_queries.sum())
        num_rows += len(batch.num_queries)
    rng = np.random.default_rng((SEED.value, EVAL_STEP, length))
    prompts = [recall.fill_prompt(rng, length, size)[0] for size in (2, 16, 64)]
    generated = [generate(predict, params, prompt) for prompt in prompts]
    return {
        "right": right / num_values,
        "stopped": stopped / num_rows,
        "num_values": num_values,
        "num_prompts": num_rows,
        "generated_right": generated,
    }


def generate(predict: Callable, params: Any, prompt: recall.RecallPrompt) -> float:
    """Share of right values when the model reads its own greedy output."""
    size = len(prompt.prompt_ids) + len(prompt.answer_ids)
    size = -(-size // 128) * 128  # few shapes, few compilations
    tokens = np.zeros((1, size), np.int32)
    positions = np.arange(size, dtype=np.int32)[None]
    at = len(prompt.prompt_ids)
    tokens[0, :at] = prompt.prompt_ids
    for index in range(at, at + len(prompt.answer_ids)):
        tokens[0, index] = predict(params, tokens, positions)[0, index - 1]
    output = tokens[0, at : at + len(prompt.answer_ids)].tolist()
    right, answered = recall.score(prompt, output)
    return right / answered


def main() -> None:
    out = Path(OUT.value)
    if out.exists() and not is_checkpoint(out):
        raise app.UsageError(
            f"--out={out} exists and is no checkpoint; give another folder."
        )
    lens = prompt_lens()
    optimizer = training.make_optimizer(LEARNING_RATE.value, len(lens))
    graph, params = training.init_params(model_config(), SEED.value)
    train_step = training.make_step(graph, optimizer)

    work_dir = Path(WORK_DIR.value).absolute()
    work_dir.mkdir(parents=True, exist_ok=True)
    state: dict[str, Any] = {"params": params, "opt_state": optimizer.init(params)}
    state |= {"step": 0, "seconds": 0.0, "starts": 0}
    options = ocp.CheckpointManagerOptions(max_to_keep=2)
    manager = ocp.CheckpointManager(work_dir / "checkpoints", options=options)
    if (latest := manager.latest_step()) is not None:
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
        state = dict(manager.restore(latest, args=ocp.args.StandardRestore(abstract)))
    params, opt_state, start = state["params"], state["opt_state"], int(state["step"])
    stop = len(lens) if MAX_STEPS.value < 0 else min(MAX_STEPS.value, len(lens))
    starts = int(state["starts"]) + (start < stop)
    began = time.monotonic() - float(state["seconds"])
    bar = tqdm(range(start, stop), initial=start, total=len(lens), mininterval=5)
    for step in bar:
        batch = training.arrays(draw(step, lens[step]))
        params, opt_state, loss = train_step(params, opt_state, batch)
        done = step + 1
        if done % LOG_EVERY == 0 or done == stop:
            row = jax.tree.map(lambda x: np.asarray(x, np.float64).round(4).tolist(), loss)
            row |= {"step": done, "length": lens[step], "seconds": time.monotonic() - began}
            with open(work_dir / "log.jsonl", "a") as log:
                log.write(json.dumps(row) + "\n")
            bar.set_postfix(length=lens[step], loss=row["answer"])
        if done % SAVE_EVERY.value == 0 or done == stop:
            state = {"params": params, "opt_state": opt_state, "step": done}
            state |= {"seconds": time.monotonic() - began, "starts": starts}
            manager.save(done, args=ocp.args.StandardSave(state))
            manager.wait_until_finished()  # before the next step takes the buffers
    manager.close()
    if stop < len(lens):
        return

    record = {
        "command": shlex.join(["python", "-m", "experiments.train_recall", *sys.argv[1:]]),
        "seed": SEED.value,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "starts": starts,
        "cores": os.cpu_count(),
        "versions": {name: version(name) for name in ("jax", "flax", "optax")},
        "steps": len(lens),
        "parameters": sum(x.size for x in jax.tree.leaves(params)),
    }
    predict = training.make_predict(graph)
    record["accuracy"] = {n: evaluate(predict, params, n) for n in sorted(set(lens))}
    tokenizer = work_dir / "tokenizer.json"
    byte_tokenizer().save(tokenizer)
    save_checkpoint(out, training.rebuild(graph, params), tokenizer=tokenizer)
    (out / "training.json").write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    entry.run(main)

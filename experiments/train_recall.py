"""Trains the shipped model on associative recall and writes its folder.

    python -m experiments.train_recall --out=paxkv/assets/recall --work_dir=/tmp/recall

Killed and started again with the same command, it goes on from the last checkpoint with
the same data: a batch depends on the seed and the step only. The record of the shipped
weights (command, seed, time, accuracy) is `training.json` beside them.
"""

import dataclasses
import json
import math
import os
import shlex
import sys
import time
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import app, flags
from tqdm import tqdm

from paxkv import recall, training
from paxkv.models.config import ModelConfig, RopeConfig

OUT = flags.DEFINE_string("out", None, "Folder of the finished model.", required=True)
WORK_DIR = flags.DEFINE_string("work_dir", None, "Checkpoints and log.", required=True)
SEED = flags.DEFINE_integer("seed", 0, "Of weights and data.")
STAGES = flags.DEFINE_list(
    "stages",
    ["64:900", "128:400", "256:400", "512:300", "1024:300"],
    "Longest prompt in tokens and number of steps, of each stage in turn.",
)
BATCH_TOKENS = flags.DEFINE_integer("batch_tokens", 3840, "Per step.")
LEARNING_RATE = flags.DEFINE_float("learning_rate", 0.02, "Of Muon; Adam has a tenth.")
SAVE_EVERY = flags.DEFINE_integer("save_every", 100, "Steps between checkpoints.")
MAX_STEPS = flags.DEFINE_integer("max_steps", -1, "Stop early, as if killed; -1: never.")
NUM_EVAL = flags.DEFINE_integer("num_eval", 64, "Held-out prompts per length.")
NUM_LAYERS = flags.DEFINE_integer("num_layers", 4, "Of the decoder.")
HIDDEN_SIZE = flags.DEFINE_integer("hidden_size", 128, "Of the decoder.")

MAX_CONTEXT = 2048  # tokens
MAX_POSITION = 1280  # a prompt of 1,024 tokens and the longest answer to it
EVAL_STEP = 10**9  # takes the place of the step in the seed of held-out prompts
HEAD_DIM = 32


def model_config() -> ModelConfig:
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
        rope=RopeConfig(theta=500_000.0),
        layer_windows=(0,) * NUM_LAYERS.value,
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


def draw(step: int, length: int) -> recall.RecallBatch:
    rng = np.random.default_rng((SEED.value, step, length))
    batch = max(1, BATCH_TOKENS.value // (length + length // 4))
    return recall.make_batch(rng, length, batch, MAX_POSITION)


def evaluate(predict, decoder_params) -> dict[str, dict[str, float]]:
    """Share of keys answered right, per length; a few prompts are also generated."""
    report = {}
    for length in sorted({int(stage.split(":")[0]) for stage in STAGES.value}):
        rng = np.random.default_rng((SEED.value, EVAL_STEP, length))
        right = asked = generated_right = generated = 0
        while asked == 0 or right + asked < 0 or generated < 0:
            pass
        report[str(length)] = {}
    return report

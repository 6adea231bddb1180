"""The tiny models of every family in tests/fixtures/hf (scripts/make_hf_fixtures.py)."""

import functools
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paxkv.models.decoder import Decoder
from paxkv.models.loading import load_decoder

FOLDER = Path(__file__).resolve().parents[2] / "fixtures/hf"
NAMES = (
    "deepseek_v2",
    "deepseek_v2_lite",
    "deepseek_v3",
    "gemma2",
    "gemma3",
    "gpt2",
    "llama2",
    "llama3",
    "llama_mqa",
    "llama_yarn",
    "mistral",
    "opt",
    "qwen2",
    "qwen3",
)
TOLERANCE = 2e-4  # of float32 logits


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What transformers computed."""

    prompt_ids: tuple[int, ...]
    greedy_ids: tuple[int, ...]
    positions: tuple[int, ...]  # of prompt and continuation
    logits: np.ndarray  # float32 [positions, V]
    min_top2_gap: float

    @property
    def all_ids(self) -> tuple[int, ...]:
        return self.prompt_ids + self.greedy_ids


def expected_of(name: str) -> Expected:
    fields = json.loads((FOLDER / name / "expected.json").read_text())
    return Expected(
        prompt_ids=tuple(fields["prompt_ids"]),
        greedy_ids=tuple(fields["greedy_ids"]),
        positions=tuple(fields["positions"]),
        logits=np.asarray(fields["logits"], np.float32),
        min_top2_gap=fields["min_top2_gap"],
    )


@functools.cache
def decoder_of(name: str) -> Decoder:
    return load_decoder(FOLDER / name)

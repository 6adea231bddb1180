"""Compares greedy tokens and first logits, through the paged cache, with a reference.

    python -m experiments.parity --weights=PATH --reference=FILE.json \\
        --config=configs/serve.py --config.cache.block_size=7

The reference is JSON with, anywhere in it, objects that have `prompt_ids`,
`generated_ids` (greedy, EOS banned), `first_top5_ids` and `first_top5_logits`, and may
have `first_logsumexp`. Prints a line per prompt; exits with 1 on a mismatch.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags, logging
from ml_collections import config_flags
from tqdm import tqdm

from experiments import entry
from paxkv.building import build_engine
from paxkv.config import make_engine_config
from paxkv.engine import Engine
from paxkv.models.loading import load_decoder
from paxkv.sampling_params import MAX_LOGPROBS, SamplingParams
from paxkv.types import TokenLogprobs

WEIGHTS = flags.DEFINE_string(
    "weights", None, "A checkpoint, a Hugging Face directory or a GGUF file.", required=True
)
REFERENCE = flags.DEFINE_string("reference", None, "The JSON file.", required=True)
TOLERANCE = flags.DEFINE_float("tolerance", 2e-3, "Largest difference of a first logit.")
DEFAULT_CONFIG = "configs/serve.py"
CONFIG = config_flags.DEFINE_config_file(
    "config", help_string=f"Python file of the config; default: {DEFAULT_CONFIG}."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One prompt of the reference and what must follow it."""

    name: str
    prompt_ids: list[int]
    generated_ids: list[int]
    top_ids: list[int]
    top_logits: np.ndarray
    logsumexp: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What the engine gave for a case."""

    token_ids: list[int]
    first: TokenLogprobs | None  # None: there is no token
    message: str  # why it ended


def read_cases(node: Any, name: str = "reference") -> Iterator[Case]:
    """All cases in a JSON value, named by where they stand."""
    if isinstance(node, dict) and "prompt_ids" in node:
        yield Case(
            name=name,
            prompt_ids=node["prompt_ids"],
            generated_ids=node["generated_ids"],
            top_ids=node["first_top5_ids"],
            top_logits=np.asarray(node["first_top5_logits"], np.float64),
            logsumexp=node.get("first_logsumexp"),
        )
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from read_cases(value, key)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from read_cases(value, f"{name}[{index}]")


def load_cases(path: Path) -> list[Case]:
    """All cases of a reference file.

    Raises:
      ValueError: it is no JSON, or holds no complete case.
    """
    try:
        cases = list(read_cases(json.loads(path.read_text(encoding="utf-8"))))
    except (ValueError, KeyError) as error:
        raise ValueError(
            f"--reference={path} is no reference file ({error!r}); see this module's "
            "docstring for its form."
        ) from error
    if not cases:
        raise ValueError(
            f"--reference={path} has no object with prompt_ids; see this "
            "module's docstring for its form."
        )
    return cases


def run_cases(engine: Engine, cases: list[Case]) -> list[Output]:
    """Generates as many tokens as each case has, all cases at once, EOS banned."""
    for index, case in enumerate(cases):
        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=len(case.generated_ids),
            min_tokens=len(case.generated_ids),
            logprobs=MAX_LOGPROBS,
        )
        engine.add(case.prompt_ids, sampling, request_id=index)
    token_ids: list[list[int]] = [[] for _ in cases]
    first: list[TokenLogprobs | None] = [None for _ in cases]
    messages = ["" for _ in cases]
    total = sum(len(case.generated_ids) for case in cases)
    with tqdm(total=total, desc="generate", unit="token") as bar:
        while engine.has_unfinished:
            for update in engine.step().updates:
                index = update.request_id
                token_ids[index] += update.new_token_ids
                if first[index] is None and update.logprobs:
                    first[index] = update.logprobs[0]
                if update.finish is not None:
                    messages[index] = update.finish.message
                bar.update(len(update.new_token_ids))
    parts = zip(token_ids, first, messages, strict=True)
    return [Output(token_ids=t, first=f, message=m) for t, f, m in parts]


def logit_difference(case: Case, first: TokenLogprobs | None) -> float:
    """The largest over the given first logits; infinite if one is not among our best.

    An engine reports log-probabilities. With the reference's logsumexp they are
    logits; without it, logits are compared by their distance to the best.
    """
    if first is None:
        return float("inf")
    ours = dict(zip(first.top_ids, first.top_logprobs, strict=True))
    logprobs = np.asarray([ours.get(token_id, -np.inf) for token_id in case.top_ids])
    if case.logsumexp is not None:
        return float(np.abs(logprobs + case.logsumexp - case.top_logits).max())
    relative = case.top_logits - case.top_logits[0]
    return float(np.abs(logprobs - logprobs[0] - relative).max())


def main() -> int:
    logging.set_verbosity(logging.WARNING)

    # --- load
    config = CONFIG.value
    try:
        cases = load_cases(Path(REFERENCE.value))
        decoder = load_decoder(WEIGHTS.value, config.weights_dtype)
        model_context = decoder.config.max_context
        max_context = min(config.engine.max_context or model_context, model_context)
        engine_config = make_engine_config(
            engine={**config.engine, "model": WEIGHTS.value, "max_context": max_context},
            cache=config.cache,
            scheduler=config.scheduler,
            pool_positions=config.pool_positions,
        )
        engine, executor = build_engine(engine_config, decoder)
    except (ValueError, OSError, ImportError) as error:
        raise app.UsageError(str(error)) from error

    # --- run
    outputs = run_cases(engine, cases)

    # --- report
    plan = executor.cache_plan
    print(
        f"{executor.device_name}: {executor.options.attention.implementation} attention, "
        f"{config.weights_dtype} weights, {config.cache.dtype} cache, matmul precision "
        f"{config.engine.matmul_precision}, {plan.num_blocks - 1} blocks x "
        f"{plan.block_size} tokens, context {max_context:,}, "
        f"{executor.num_programs} programs"
    )
    failed = False
    for case, output in zip(cases, outputs, strict=True):
        pairs = zip(output.token_ids, case.generated_ids, strict=False)
        num_equal = sum(ours == theirs for ours, theirs in pairs)
        difference = logit_difference(case, output.first)
        good = num_equal == len(case.generated_ids) and difference <= TOLERANCE.value
        failed |= not good
        scale = "logits" if case.logsumexp is not None else "logits below the best"
        print(
            f"{'ok  ' if good else 'FAIL'} {case.name}: prompt of {len(case.prompt_ids)}, "
            f"{num_equal} of {len(case.generated_ids)} tokens equal, first {scale} differ "
            f"by at most {difference:.1e}"
            + ("" if output.token_ids else f" ({output.message})")
        )
    return int(failed)


if __name__ == "__main__":
    entry.run(main, config=DEFAULT_CONFIG)

"""Seeded workloads: how long prompts and outputs are, and when requests arrive."""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

import numpy as np
from jaxtyping import Float64, Int64

from paxkv import recall

SHAREGPT_CONTEXT = 2048  # tokens; prompt + output of every pair is shorter
ARRIVALS = ("closed", "poisson")
CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkItem:
    """One request to come."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    arrival_s: float  # after the start of the run


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadConfig:
    """A workload, drawn again from the same seed."""

    num_requests: int
    seed: int = 0
    arrival: str = CLOSED  # all at once; or "poisson"
    rate_per_s: float = 1.0  # of "poisson"

    def __post_init__(self):
        if self.num_requests < 1:
            raise ValueError(f"num_requests={self.num_requests} is refused: use ≥ 1.")
        if self.seed < 0:
            raise ValueError(f"workload.seed={self.seed} is refused: use ≥ 0.")
        if self.arrival not in ARRIVALS:
            raise ValueError(
                f"arrival={self.arrival!r} is refused: use one of {', '.join(ARRIVALS)}."
            )
        if not 0 < self.rate_per_s < float("inf"):
            raise ValueError(f"rate_per_s={self.rate_per_s} is refused: use > 0.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallWorkload:
    """Work items whose outputs can be scored; item i asks `prompts[i]`."""

    items: tuple[WorkItem, ...]
    prompts: tuple[recall.RecallPrompt, ...]
    num_raised: int  # items lengthened to one pair, one query and its answer


@functools.cache
def sharegpt_quantiles() -> Mapping[str, Float64[np.ndarray, "101"]]:
    """Quantiles 0, 1 .. 100 % of `input_tokens` and `output_tokens`."""
    text = resources.files("paxkv").joinpath("assets/sharegpt_quantiles.json").read_text()
    table = json.loads(text)
    return {
        name: np.asarray(table[name], np.float64)
        for name in ("input_tokens", "output_tokens")
    }


def _draw_lengths(
    rng: np.random.Generator, quantiles: Float64[np.ndarray, "_"], count: int
) -> Int64[np.ndarray, "count"]:
    """Inverse of the distribution function, linear between the quantiles."""
    levels = np.linspace(0.0, 1.0, len(quantiles))
    return np.rint(np.interp(rng.random(count), levels, quantiles)).astype(np.int64)


def sharegpt_lengths(
    rng: np.random.Generator, count: int
) -> tuple[Int64[np.ndarray, "count"], Int64[np.ndarray, "count"]]:
    """Prompt and output lengths in tokens, drawn independently; `rng` is advanced.

    An output that would reach `SHAREGPT_CONTEXT` with its prompt is drawn again. Not
    the pair: the table describes pairs already filtered so, and to filter the pair a
    second time takes long prompts away and lowers their mean by 6 %.
    """
    table = sharegpt_quantiles()
    inputs = _draw_lengths(rng, table["input_tokens"], count)
    outputs = _draw_lengths(rng, table["output_tokens"], count)
    while (too_long := inputs + outputs >= SHAREGPT_CONTEXT).any():
        redrawn = _draw_lengths(rng, table["output_tokens"], int(too_long.sum()))
        outputs[too_long] = redrawn
    return inputs, outputs


def scale_lengths(
    lengths: Int64[np.ndarray, "count"], max_context: int
) -> Int64[np.ndarray, "count"]:
    """Keeps the shape of the distribution in a model with another context; at least 1.

    Rounds down, so that a pair shorter than ShareGPT's context stays within the model's.
    """
    return np.maximum(1, lengths * max_context // SHAREGPT_CONTEXT)


def arrival_times_s(
    rng: np.random.Generator, config: WorkloadConfig
) -> Float64[np.ndarray, "num_requests"]:
    """Seconds after the start, ascending; `rng` is advanced only by "poisson"."""
    if config.arrival == CLOSED:
        return np.zeros(config.num_requests)
    gaps_s = rng.exponential(1.0 / config.rate_per_s, config.num_requests)
    return np.cumsum(gaps_s)


def recall_workload(config: WorkloadConfig, max_context: int) -> RecallWorkload:
    """ShareGPT's lengths, scaled to `max_context`, filled with recall prompts.

    Raises:
      ValueError: the shortest recall prompt and its answer exceed the context.
    """
    shortest = recall.prompt_len(num_pairs=1, num_queries=1) + recall.VALUE_LEN
    if max_context < shortest:
        raise ValueError(
            f"{max_context=} cannot hold a recall prompt and its answer; they need "
            f"{shortest} tokens. Use a model with a longer context."
        )
    rng = np.random.default_rng(config.seed)
    inputs, outputs = sharegpt_lengths(rng, config.num_requests)
    arrivals_s = arrival_times_s(rng, config)
    items, prompts, num_raised = [], [], 0
    for prompt_len, output_len, arrival_s in zip(
        scale_lengths(inputs, max_context).tolist(),
        scale_lengths(outputs, max_context).tolist(),
        arrivals_s.tolist(),
        strict=True,
    ):
        prompt, raised = recall.fill_prompt(rng, prompt_len, output_len)
        room = max_context - len(prompt.prompt_ids)  # less than drawn only if raised
        item = WorkItem(
            prompt_ids=prompt.prompt_ids,
            max_tokens=min(max(output_len, recall.VALUE_LEN), room),
            arrival_s=arrival_s,
        )
        items.append(item)
        prompts.append(prompt)
        num_raised += raised
    return RecallWorkload(items=tuple(items), prompts=tuple(prompts), num_raised=num_raised)


def score_recall(
    prompts: Sequence[recall.RecallPrompt], outputs: Sequence[list[int]]
) -> tuple[int, int]:
    """Keys answered right, and keys answered at all, over all requests."""
    scores = [
        recall.score(prompt, output)
        for prompt, output in zip(prompts, outputs, strict=True)
    ]
    return sum(right for right, _ in scores), sum(answered for _, answered in scores)

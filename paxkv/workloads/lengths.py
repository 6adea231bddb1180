"""How long prompts and outputs are: distributions with published moments, in tokens."""

import functools
import json
from collections.abc import Iterator, Mapping
from importlib import resources

import numpy as np
from jaxtyping import Float64, Int64

SHAREGPT_CONTEXT = 2048  # tokens; prompt + output of every pair is shorter
PAIRS_AT_ONCE = 1024  # drawn; fixed, so that a longer workload begins with a shorter one


@functools.cache
def length_quantiles(dataset: str) -> Mapping[str, Float64[np.ndarray, "101"]]:
    """Quantiles 0, 1 .. 100 % of `input_tokens` and `output_tokens`.

    Args:
      dataset: "sharegpt" or "wmt16"; its file in assets says what was counted.
    """
    file = resources.files("paxkv").joinpath(f"assets/{dataset}_quantiles.json")
    table = json.loads(file.read_text("utf-8"))
    return {
        name: np.asarray(table[name], np.float64)
        for name in ("input_tokens", "output_tokens")
    }


def _lengths_at(
    drawn: Float64[np.ndarray, "count"], quantiles: Float64[np.ndarray, "_"]
) -> Int64[np.ndarray, "count"]:
    """Inverse of the distribution function, linear between the quantiles."""
    levels = np.linspace(0.0, 1.0, len(quantiles))
    return np.rint(np.interp(drawn, levels, quantiles)).astype(np.int64)


def sharegpt_lengths(
    rng: np.random.Generator, count: int
) -> tuple[Int64[np.ndarray, "count"], Int64[np.ndarray, "count"]]:
    """Prompt and output lengths in tokens, drawn independently; `rng` is advanced.

    An output that would reach `SHAREGPT_CONTEXT` with its prompt is drawn again. Not
    the pair: the table describes pairs already filtered so, and to filter the pair a
    second time takes long prompts away and lowers their mean by 6 %.
    """
    table = length_quantiles("sharegpt")
    inputs = _lengths_at(rng.random(count), table["input_tokens"])
    outputs = _lengths_at(rng.random(count), table["output_tokens"])
    while (too_long := inputs + outputs >= SHAREGPT_CONTEXT).any():
        drawn = rng.random(int(too_long.sum()))
        outputs[too_long] = _lengths_at(drawn, table["output_tokens"])
    return inputs, outputs


def alpaca_lengths(
    rng: np.random.Generator, count: int
) -> tuple[Int64[np.ndarray, "count"], Int64[np.ndarray, "count"]]:
    """Lengths with the means of Alpaca in figure 11 of the PagedAttention paper
    (arXiv 2309.06180): 19.31 and 58.45 tokens. `rng` is advanced.

    Only the means are public. The sigmas were fitted, so that full pools of the paper's
    baselines run as many requests as in its figure 13. A pair that reaches
    `SHAREGPT_CONTEXT` is drawn again.
    """
    inputs = np.empty(count, np.int64)
    outputs = np.empty(count, np.int64)
    missing = np.ones(count, bool)
    while missing.any():
        num_missing = int(missing.sum())
        inputs[missing] = 6 + lognormal_lengths(rng, num_missing, mean=13.31, sigma=0.6)
        outputs[missing] = lognormal_lengths(rng, num_missing, mean=58.45, sigma=0.9)
        missing = inputs + outputs >= SHAREGPT_CONTEXT
    return inputs, outputs


def wmt16_lengths(
    rng: np.random.Generator, count: int
) -> tuple[Int64[np.ndarray, "count"], Int64[np.ndarray, "count"]]:
    """English sentences and their German translations, in tokens; `rng` is advanced.

    One level is drawn for both: a long sentence has a long translation (their ranks
    correlate by 0.955, here by 1).
    """
    table, drawn = length_quantiles("wmt16"), rng.random(count)
    inputs = _lengths_at(drawn, table["input_tokens"])
    return inputs, _lengths_at(drawn, table["output_tokens"])


def lognormal_lengths(
    rng: np.random.Generator, count: int, *, mean: float | int, sigma: float | int
) -> Int64[np.ndarray, "count"]:
    """Rounded to whole tokens, at least 1; `rng` is advanced.

    Args:
      mean: of the lengths themselves, before rounding.
      sigma: of their logarithm; 0: all are equal.
    """
    mu = np.log(mean) - sigma**2 / 2
    drawn = np.minimum(rng.lognormal(mu, sigma, count), 2.0**62)
    return np.maximum(1, np.rint(drawn)).astype(np.int64)


def scale_lengths(
    lengths: Int64[np.ndarray, "count"], max_context: int
) -> Int64[np.ndarray, "count"]:
    """Keeps the shape of the distribution in a model with another context; at least 1.

    Rounds down, so that a pair shorter than ShareGPT's context stays within the model's.
    """
    return np.maximum(1, lengths * max_context // SHAREGPT_CONTEXT)


DATASETS = {
    "sharegpt": sharegpt_lengths,
    "alpaca": alpaca_lengths,
    "wmt16": wmt16_lengths,
}


def length_pairs(
    rng: np.random.Generator,
    name: str,
    *,
    input_tokens: int,
    output_tokens: int,
    input_sigma: float | int,
    output_sigma: float | int,
) -> Iterator[tuple[int, int]]:
    """Prompt and output lengths without end; `rng` is advanced.

    Args:
      name: "sharegpt", "alpaca", "wmt16", "fixed" or "lognormal".
      input_tokens, output_tokens: the lengths of "fixed", the means of "lognormal".
      input_sigma, output_sigma: of "lognormal".
    """
    while True:
        if name in DATASETS:
            inputs, outputs = DATASETS[name](rng, PAIRS_AT_ONCE)
        else:
            is_fixed = name == "fixed"
            inputs, outputs = (
                lognormal_lengths(
                    rng, PAIRS_AT_ONCE, mean=mean, sigma=0 if is_fixed else sigma
                )
                for mean, sigma in (
                    (input_tokens, input_sigma),
                    (output_tokens, output_sigma),
                )
            )
        yield from zip(inputs.tolist(), outputs.tolist(), strict=True)

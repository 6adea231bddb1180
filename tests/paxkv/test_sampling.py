"""Sampling on the device against a plain reference, and against chance."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from paxkv import truncation
from paxkv.sampling import (
    SamplingFeatures,
    SamplingInputs,
    gumbel_noise,
    sample,
    scores,
    token_logprobs,
)

V = 12
LEAST_P_VALUE = 1e-3  # of a fixed seed, so a failure is no bad luck

jit_sample = jax.jit(sample, static_argnums=2)
jit_scores = jax.jit(scores, static_argnums=2)
jit_noise = jax.jit(gumbel_noise, static_argnums=3)
GREEDY = SamplingFeatures()
EVERYTHING = SamplingFeatures(
    random=True, truncation=True, penalties=True, bias=True, logprobs=5
)


def inputs_of(num_rows: int, vocab_size: int = V, **changes) -> SamplingInputs:
    """Rows that ask for nothing, but for the given arrays (or one value for all)."""

    def full(value, dtype):
        return np.full(num_rows, value, dtype)

    fields = {
        "temperature": full(0, np.float32),
        "top_k": full(vocab_size, np.int32),
        "top_p": full(1, np.float32),
        "min_p": full(0, np.float32),
        "repetition_penalty": full(1, np.float32),
        "presence_penalty": full(0, np.float32),
        "frequency_penalty": full(0, np.float32),
        "seeds": np.zeros((num_rows, 2), np.uint32),
        "sample_indices": np.zeros(num_rows, np.int32),
        "positions": np.arange(num_rows, dtype=np.int32),
        "bias_ids": np.zeros((num_rows, 0), np.int32),
        "bias_values": np.zeros((num_rows, 0), np.float32),
        "banned_ids": np.zeros((num_rows, 0), np.int32),
        "history": np.zeros((num_rows, 0), np.int32),
        "num_prompt": full(0, np.int32),
    }
    for name, value in changes.items():
        value = np.asarray(value, fields[name].dtype)
        fields[name] = full(value, value.dtype) if value.ndim == 0 else value
    return SamplingInputs(**fields)


def random_logits(num_rows: int, vocab_size: int = V, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=(num_rows, vocab_size))
    return (2 * values).astype(np.float32)


def everything(num_rows: int, vocab_size: int, seed: int = 0) -> SamplingInputs:
    """Rows with all features on, each row with its own values; every third is greedy."""
    rng = np.random.default_rng(seed)

    def ids(width):  # some are padding
        return rng.integers(0, vocab_size + 2, (num_rows, width)).clip(0, vocab_size)

    def uniform(low, high):
        return rng.uniform(low, high, num_rows)

    return inputs_of(
        num_rows,
        vocab_size,
        temperature=np.where(np.arange(num_rows) % 3, uniform(0.3, 2), 0),
        top_k=rng.integers(1, vocab_size + 1, num_rows),
        top_p=uniform(0.3, 1),
        min_p=uniform(0, 0.2),
        repetition_penalty=uniform(0.7, 1.5),
        presence_penalty=uniform(-1, 1),
        frequency_penalty=uniform(-1, 1),
        seeds=rng.integers(0, 2**32, (num_rows, 2)),
        positions=rng.integers(0, 1000, num_rows),
        bias_ids=np.stack([rng.permutation(vocab_size)[:3] for _ in range(num_rows)]),
        bias_values=rng.normal(size=(num_rows, 3)),
        banned_ids=ids(2),
        history=ids(9),
        num_prompt=rng.integers(0, 9, num_rows),
    )


def reference_logits(logits: np.ndarray, inputs: SamplingInputs, row: int) -> np.ndarray:
    """One row before the draw, float64, from the definitions; -inf is not kept."""
    x = logits[row].astype(np.float64)
    for token, bias in zip(inputs.bias_ids[row], inputs.bias_values[row], strict=True):
        if token < len(x):
            x[token] += bias
    x[[t for t in inputs.banned_ids[row] if t < len(x)]] = -np.inf
    known = inputs.history[row]
    output = [t for t in known[inputs.num_prompt[row] :] if t < len(x)]
    for token in {t for t in known if t < len(x)}:
        penalty = float(inputs.repetition_penalty[row])
        x[token] = x[token] / penalty if x[token] > 0 else x[token] * penalty
        x[token] -= inputs.frequency_penalty[row] * output.count(token)
        x[token] -= inputs.presence_penalty[row] * (token in output)
    if inputs.temperature[row] == 0:
        return x
    x = (x - x.max()) / inputs.temperature[row]
    p = np.exp(x)
    order = np.argsort(-x, kind="stable")
    kept = [t for t in order if p[t] >= inputs.min_p[row] * p.max()]
    kept = kept[: inputs.top_k[row]]
    share = np.cumsum(p[kept]) / p[kept].sum()
    if inputs.top_p[row] < 1:
        kept = kept[: int(np.argmax(share >= inputs.top_p[row])) + 1]
    return np.where(np.isin(np.arange(len(x)), kept), x, -np.inf)


def kept_logits(logits, inputs, features) -> np.ndarray:
    """What `scores` perturbs: the same without its noise."""
    seeds, samples, positions = inputs.seeds, inputs.sample_indices, inputs.positions
    noise = jit_noise(seeds, samples, positions, logits.shape[-1])
    is_random = (inputs.temperature > 0)[:, None]
    return np.asarray(jit_scores(logits, inputs, features) - np.where(is_random, noise, 0))


def test_greedy_takes_the_lowest_of_equal_ids():
    logits = np.array([[0, 3, 3, 1], [5, 5, 5, 5], [-1, -2, -3, -1]], np.float32)
    output = jit_sample(logits, inputs_of(3, 4), GREEDY)
    assert output.tokens.tolist() == [1, 0, 0]
    assert output.logprobs.shape == (0,) and output.top_ids.shape == (0, 0)


SINGLE = {
    "temperature": {"temperature": 0.6},
    "top_k": {"temperature": 1.3, "top_k": 4},
    "top_k of one": {"temperature": 1.3, "top_k": 1},
    "top_p": {"temperature": 1.3, "top_p": 0.7},
    "tiny top_p": {"temperature": 1.3, "top_p": 1e-6},
    "min_p": {"temperature": 1.3, "min_p": 0.15},
    "min_p of one": {"temperature": 1.3, "min_p": 1.0},
    "top_k and top_p": {"temperature": 1.3, "top_k": 5, "top_p": 0.6},
    "all three": {"temperature": 1.3, "top_k": 6, "top_p": 0.8, "min_p": 0.1},
}


@pytest.mark.parametrize("changes", SINGLE.values(), ids=SINGLE)
def test_random_features_alone_and_together(changes):
    logits, inputs = random_logits(8), inputs_of(8, **changes)
    features = SamplingFeatures(random=True, truncation=len(changes) > 1)
    ours = kept_logits(logits, inputs, features)
    expected = np.stack([reference_logits(logits, inputs, row) for row in range(8)])
    np.testing.assert_allclose(ours, expected, atol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"repetition_penalty": 1.7},
        {"presence_penalty": 0.9},
        {"frequency_penalty": -0.8},
        {"repetition_penalty": 0.6, "presence_penalty": 1.5, "frequency_penalty": 0.3},
    ],
)
def test_penalties(changes):
    history = np.random.default_rng(3).integers(0, V + 1, (6, 10))
    inputs = inputs_of(6, history=history, num_prompt=np.arange(6) * 2, **changes)
    logits = random_logits(6)
    ours = jit_scores(logits, inputs, SamplingFeatures(penalties=True))
    expected = np.stack([reference_logits(logits, inputs, row) for row in range(6)])
    np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_bias_and_ban():
    logits = np.zeros((2, 4), np.float32)
    inputs = inputs_of(
        2,
        4,
        bias_ids=[[1, 4], [2, 3]],
        bias_values=[[2.0, 9.0], [1.0, -1.0]],
        banned_ids=[[4, 4], [2, 4]],
    )
    ours = jit_scores(logits, inputs, SamplingFeatures(bias=True))
    assert ours.tolist() == [[0, 2, 0, 0], [0, 0, -np.inf, -1]]


@pytest.mark.parametrize("vocab_size", [1, 2, V, 3000])
def test_all_features_in_a_mixed_batch(vocab_size):
    num_rows = 16
    logits = random_logits(num_rows, vocab_size)
    inputs = everything(num_rows, max(vocab_size, 3)) if vocab_size >= 3 else None
    if inputs is None:  # too few tokens for the lists: truncation only
        inputs = inputs_of(num_rows, vocab_size, temperature=1.0, top_k=1, top_p=0.5)
    ours = kept_logits(logits, inputs, EVERYTHING)
    for row in range(num_rows):
        expected = reference_logits(logits, inputs, row)
        np.testing.assert_allclose(ours[row], expected, atol=2e-4)


def test_more_than_the_head_is_sorted_where_needed():
    vocab_size = truncation.HEAD + 500
    logits = 0.01 * random_logits(6, vocab_size)  # nearly flat: the head does not do
    inputs = inputs_of(
        6,
        vocab_size,
        temperature=1.0,
        top_k=[vocab_size, vocab_size, 1300, 1300, 5, vocab_size],
        top_p=[0.95, 1.0, 1.0, 0.5, 1.0, 0.2],
    )
    features = SamplingFeatures(random=True, truncation=True)
    ours = np.isfinite(kept_logits(logits, inputs, features)).sum(axis=-1)
    for row in range(6):
        expected = np.isfinite(reference_logits(logits, inputs, row)).sum()
        assert abs(int(ours[row]) - int(expected)) <= 1  # p's boundary is float32
    assert ours[1:3].tolist() == [vocab_size, 1300] and ours[4] == 5


def test_equal_logits_at_the_cut_are_kept_by_id():
    logits = np.array([[1, 2, 2, 2, 0]], np.float32)
    features = SamplingFeatures(random=True, truncation=True)
    inputs = inputs_of(1, 5, temperature=1.0, top_k=2)
    kept = np.isfinite(kept_logits(logits, inputs, features))
    assert kept.tolist() == [[False, True, True, False, False]]
    # three equal tokens of a third each, of which 0.5 needs two
    inputs = inputs_of(1, 5, temperature=0.01, top_p=0.5)
    kept = np.isfinite(kept_logits(logits, inputs, features))
    assert kept.tolist() == [[False, True, True, False, False]]


@pytest.mark.parametrize("temperature", [1e-5, 1e30])
def test_extreme_temperatures_stay_finite(temperature):
    logits = np.array([[3e38, -3e38, 1.0, 0.0]], np.float32)
    inputs = inputs_of(1, 4, temperature=temperature, banned_ids=[[2]])
    features = SamplingFeatures(random=True, truncation=True, bias=True)
    token = int(jit_sample(logits / 4, inputs, features).tokens[0])
    assert token in ({0} if temperature < 1 else {0, 1, 3})


DRAWS = {
    "plain": {},
    "hot": {"temperature": 2.0},
    "top_p": {"top_p": 0.8},
    "top_k and min_p": {"top_k": 6, "min_p": 0.05},
}


@pytest.mark.parametrize("changes", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("varying", ["positions", "seeds"])
def test_frequencies_match_probabilities(changes, varying):
    count = 6000
    logits = np.repeat(random_logits(1, 8, seed=5), count, axis=0)
    fields = {"positions": np.full(count, 7), "seeds": np.full((count, 2), 3)}
    index = np.arange(count)
    fields[varying] = index if varying == "positions" else np.stack([index, index], -1)
    inputs = inputs_of(count, 8, **({"temperature": 1.0} | changes | fields))
    features = SamplingFeatures(random=True, truncation=True)
    tokens = jit_sample(logits, inputs, features).tokens
    weights = np.exp(reference_logits(logits, inputs, 0))
    expected = count * weights / weights.sum()
    seen = np.bincount(tokens, minlength=8)
    assert not seen[expected == 0].any()
    assert chisquare(seen[expected > 0], expected[expected > 0]).pvalue > LEAST_P_VALUE


def rows_of(inputs: SamplingInputs, rows: np.ndarray) -> SamplingInputs:
    fields = dataclasses.fields(SamplingInputs)
    return SamplingInputs(**{f.name: getattr(inputs, f.name)[rows] for f in fields})


def test_a_row_does_not_depend_on_its_batch():
    vocab_size, num_rows = truncation.HEAD + 100, 12
    logits = random_logits(num_rows, vocab_size)
    logits[::2] *= 0.01  # some rows need the full order, others do not
    inputs = everything(num_rows, vocab_size)
    tokens = jit_sample(logits, inputs, EVERYTHING).tokens
    rng = np.random.default_rng(1)
    for size in (1, 5):
        rows = rng.permutation(num_rows)[:size]
        alone = jit_sample(logits[rows], rows_of(inputs, rows), EVERYTHING)
        assert alone.tokens.tolist() == tokens[rows].tolist()


def test_features_that_a_row_does_not_use_change_nothing_in_it():
    logits = random_logits(6)
    inputs = inputs_of(6, temperature=[0, 1, 0, 1, 1, 0], seeds=np.arange(12).reshape(6, 2))
    few = jit_sample(logits, inputs, SamplingFeatures(random=True)).tokens
    assert jit_sample(logits, inputs, EVERYTHING).tokens.tolist() == few.tolist()
    greedy = logits.argmax(axis=-1)
    assert few[jnp.array([0, 2, 5])].tolist() == greedy[[0, 2, 5]].tolist()


@pytest.mark.parametrize("num_top", [0, 5, 20])
def test_logprobs_are_of_the_model(num_top):
    logits = random_logits(5)
    logits[:, 3] = logits[:, 7]  # equal logits rank by id
    features = dataclasses.replace(EVERYTHING, logprobs=num_top)
    output = jit_sample(logits, everything(5, V), features)
    expected = logits - np.log(np.exp(logits.astype(np.float64)).sum(-1, keepdims=True))
    order = np.argsort(-logits, axis=-1, kind="stable")
    width = min(num_top, V)
    assert output.top_ids.tolist() == order[:, :width].tolist()
    for row, token in enumerate(output.tokens.tolist()):
        assert output.logprobs[row] == pytest.approx(expected[row, token], abs=1e-5)
        assert order[row, output.ranks[row] - 1] == token
        np.testing.assert_allclose(
            output.top_logprobs[row], expected[row, order[row, :width]], atol=1e-5
        )


def test_logprobs_of_given_tokens():
    logits = random_logits(4)
    targets = np.array([0, 3, 11, 5], np.int32)
    output = jax.jit(partial(token_logprobs, num_top=2))(logits, targets)
    expected = jax.nn.log_softmax(logits)[np.arange(4), targets]
    np.testing.assert_allclose(output.logprobs, expected, atol=1e-5)
    assert output.tokens.tolist() == targets.tolist() and output.top_ids.shape == (4, 2)

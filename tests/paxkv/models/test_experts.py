"""Routing and the grouped products against loops over tokens."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paxkv.models.config import ExpertsConfig
from paxkv.models.experts import route, run_in_tiles

NUM_TOKENS, HIDDEN, NUM_EXPERTS = 30, 6, 12
SIGMOID = ExpertsConfig(
    first_layer=0,
    num_experts=NUM_EXPERTS,
    num_active=3,
    num_shared=1,
    intermediate_size=4,
    scoring="sigmoid",
    num_groups=4,
    num_active_groups=2,
    normalize=True,
    scale=2.5,
)
SOFTMAX = replace(SIGMOID, scoring="softmax", normalize=False)
ROUTINGS = {
    "sigmoid": SIGMOID,
    "sigmoid, all groups": replace(SIGMOID, num_active_groups=4),
    "sigmoid, not normalised": replace(SIGMOID, normalize=False),
    "softmax": SOFTMAX,
    "softmax, one group": replace(SOFTMAX, num_groups=1, num_active_groups=1),
    "softmax, normalised": replace(SOFTMAX, normalize=True),
}


def random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def expected_route(logits, bias, sizes) -> dict[int, float]:
    """Of one token: expert to weight."""
    if sizes.scoring == "softmax":
        scores = np.exp(logits) / np.exp(logits).sum()
    else:
        scores = 1 / (1 + np.exp(-logits))
    merit = scores + bias
    groups = np.split(np.arange(NUM_EXPERTS), sizes.num_groups)
    votes = 1 if sizes.scoring == "softmax" else 2
    groups.sort(key=lambda group: -np.sort(merit[group])[-votes:].sum())
    open_experts = np.concatenate(groups[: sizes.num_active_groups])
    chosen = open_experts[np.argsort(-merit[open_experts])[: sizes.num_active]]
    total = scores[chosen].sum() if sizes.normalize else 1.0
    return {int(e): float(scores[e] / total * sizes.scale) for e in chosen}


@pytest.mark.parametrize("name", ROUTINGS)
def test_routing(name):
    sizes = ROUTINGS[name]
    x, kernel = random(0, NUM_TOKENS, HIDDEN), random(1, HIDDEN, NUM_EXPERTS)
    bias = random(2, NUM_EXPERTS) if sizes.scoring == "sigmoid" else None
    experts, weights = route(
        jnp.asarray(x),
        jnp.asarray(kernel),
        None if bias is None else jnp.asarray(bias),
        sizes,
    )
    for token in range(NUM_TOKENS):
        expected = expected_route(x[token] @ kernel, 0 if bias is None else bias, sizes)
        got = dict(zip(experts[token].tolist(), weights[token].tolist(), strict=True))
        assert got == pytest.approx(expected, rel=1e-5)


def products(seed: int, num_tokens: int, num_active: int, num_used: int):
    """Tokens, their experts (only the first `num_used` serve), kernels, results."""
    rng = np.random.default_rng(seed)
    x = random(seed + 1, num_tokens, HIDDEN)
    kernels = random(seed + 2, NUM_EXPERTS, HIDDEN, HIDDEN)
    experts = np.stack([rng.permutation(num_used)[:num_active] for _ in x])
    expected = np.einsum("th,tahi->tai", x, kernels[experts])
    return x, experts.astype(np.int32), kernels, expected


@jax.jit
def grouped(x, experts, kernels):
    return run_in_tiles(lambda rows, e: rows @ kernels[e], x, experts, NUM_EXPERTS)


@pytest.mark.parametrize("num_tokens", [1, 2, 9, 64])
@pytest.mark.parametrize(("num_active", "num_used"), [(1, 1), (3, 3), (3, 12), (12, 12)])
def test_products_of_tokens_and_their_experts(num_tokens, num_active, num_used):
    x, experts, kernels, expected = products(3, num_tokens, num_active, num_used)
    got = grouped(x, experts, kernels)
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_every_token_to_one_expert_fills_many_tiles():
    x, experts, kernels, expected = products(4, 300, 1, 1)
    np.testing.assert_allclose(grouped(x, experts, kernels), expected, atol=1e-5)


def test_experts_that_no_token_chose_are_not_read():
    x, experts, kernels, expected = products(5, 8, 2, 4)
    kernels[4:] = np.nan
    np.testing.assert_allclose(grouped(x, experts, kernels), expected, atol=1e-5)


def test_a_token_with_nan_spoils_no_other():
    """A padded token's hidden state may be anything, and shares tiles with others."""
    x, experts, kernels, expected = products(6, 16, 2, 3)
    x[5] = np.nan
    got = grouped(x, experts, kernels)
    others = np.arange(16) != 5
    np.testing.assert_allclose(got[others], expected[others], atol=1e-5)


def test_gradients_reach_chosen_experts_and_tokens():
    x, experts, kernels, _ = products(7, 8, 2, 4)

    def loss(x, kernels):
        return (grouped(x, experts, kernels) ** 2).sum()

    def plain_loss(x, kernels):
        return (jnp.einsum("th,tahi->tai", x, kernels[experts]) ** 2).sum()

    for got, expected in zip(
        jax.grad(loss, (0, 1))(x, kernels),
        jax.grad(plain_loss, (0, 1))(x, kernels),
        strict=True,
    ):
        np.testing.assert_allclose(got, expected, atol=1e-3)
        assert np.abs(expected).max() > 1

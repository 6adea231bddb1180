"""Lengths against the paper's means and the tails of its data."""

from itertools import islice

import numpy as np
import pytest

from paxkv.workloads.lengths import (
    DATASETS,
    PAIRS_AT_ONCE,
    SHAREGPT_CONTEXT,
    alpaca_lengths,
    length_pairs,
    length_quantiles,
    lognormal_lengths,
    scale_lengths,
    sharegpt_lengths,
    wmt16_lengths,
)

NO_MEANS = {"input_tokens": 1, "output_tokens": 1, "input_sigma": 0, "output_sigma": 0}


@pytest.mark.parametrize("seed", range(3))
def test_lengths_have_the_papers_moments(seed):
    inputs, outputs = sharegpt_lengths(np.random.default_rng(seed), 100_000)
    # means of figure 11 of the paper; p95 of the pairs that it was drawn from
    assert inputs.mean() == pytest.approx(161.31, rel=0.05)
    assert outputs.mean() == pytest.approx(337.99, rel=0.03)
    assert np.percentile(inputs, 95) == pytest.approx(863, rel=0.10)
    assert np.percentile(outputs, 95) == pytest.approx(899, rel=0.05)
    assert (inputs + outputs).max() < SHAREGPT_CONTEXT
    assert min(inputs.min(), outputs.min()) >= 1


def test_lengths_follow_the_whole_table():
    inputs, outputs = sharegpt_lengths(np.random.default_rng(0), 200_000)
    levels = [1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 85, 90, 95, 97]
    for name, lengths, tolerance in (
        ("input_tokens", inputs, 0.03),
        ("output_tokens", outputs, 0.05),  # redrawn where too long
    ):
        table = length_quantiles("sharegpt")[name]
        assert (np.diff(table) >= 0).all()
        found = np.percentile(lengths, levels)
        np.testing.assert_allclose(found, table[levels], rtol=tolerance, atol=1)


def test_filtering_the_pair_again_would_miss_the_band():
    """Why an output is drawn again and not the pair."""
    rng = np.random.default_rng(0)
    table, levels = length_quantiles("sharegpt"), np.linspace(0, 1, 101)
    pairs = [
        np.interp(rng.random(100_000), levels, table[name])
        for name in ("input_tokens", "output_tokens")
    ]
    kept = pairs[0] + pairs[1] < SHAREGPT_CONTEXT
    assert pairs[0][kept].mean() < 0.95 * 161.31


@pytest.mark.parametrize("seed", range(3))
def test_alpaca_has_the_papers_means_and_the_fitted_shapes(seed):
    inputs, outputs = alpaca_lengths(np.random.default_rng(seed), 100_000)
    assert inputs.mean() == pytest.approx(19.31, rel=0.02)
    assert outputs.mean() == pytest.approx(58.45, rel=0.02)
    assert (inputs + outputs).max() < SHAREGPT_CONTEXT
    assert inputs.min() >= 7  # 6 tokens of frame and at least one
    # of a log-normal of mean m and sigma s the median is m·exp(-s²/2)
    assert np.median(inputs) == pytest.approx(6 + 13.31 * np.exp(-0.18), abs=1)
    assert np.median(outputs) == pytest.approx(58.45 * np.exp(-0.405), abs=1)
    assert np.log(outputs).std() == pytest.approx(0.9, rel=0.03)


def test_the_ratios_of_the_papers_means():
    shared = sharegpt_lengths(np.random.default_rng(0), 100_000)
    alpaca = alpaca_lengths(np.random.default_rng(0), 100_000)
    ratios = [a.mean() / b.mean() for a, b in zip(shared, alpaca, strict=True)]
    assert ratios == pytest.approx([8.4, 5.8], rel=0.05)


def test_wmt16_has_the_moments_of_its_sentences():
    inputs, outputs = wmt16_lengths(np.random.default_rng(0), 100_000)
    # mean and deviation of the 2,999 pairs, and of their sums: long ones come together
    for lengths, mean, deviation in (
        (inputs, 27.32, 14.82),
        (outputs, 36.29, 20.08),
        (inputs + outputs, 63.61, 34.52),
    ):
        assert lengths.mean() == pytest.approx(mean, rel=0.015)
        assert lengths.std() == pytest.approx(deviation, rel=0.06)
    assert inputs.min() >= 3 and outputs.min() >= 4


def test_lognormal_has_the_mean_that_was_asked_for():
    rng = np.random.default_rng(0)
    drawn = lognormal_lengths(rng, 200_000, mean=500, sigma=1.0)
    assert drawn.mean() == pytest.approx(500, rel=0.01)
    assert np.median(drawn) == pytest.approx(500 * np.exp(-0.5), rel=0.01)
    assert lognormal_lengths(rng, 3, mean=7, sigma=0).tolist() == [7, 7, 7]
    assert lognormal_lengths(rng, 1000, mean=1, sigma=3).min() == 1
    assert lognormal_lengths(rng, 1000, mean=2**31, sigma=5).min() >= 1


def test_scaled_lengths_stay_in_the_context():
    rng = np.random.default_rng(1)
    inputs, outputs = sharegpt_lengths(rng, 20_000)
    for max_context in (64, 1024, 2048, 8192):
        scaled = [scale_lengths(lengths, max_context) for lengths in (inputs, outputs)]
        assert min(lengths.min() for lengths in scaled) >= 1
        assert (scaled[0] + scaled[1]).max() <= max_context
    assert scale_lengths(np.array([1, 2, 3, 2047]), 1024).tolist() == [1, 1, 1, 1023]


@pytest.mark.parametrize("name", ["sharegpt", "alpaca", "wmt16"])
def test_pairs_are_those_of_the_distribution(name):
    draw = DATASETS[name]
    inputs, outputs = draw(np.random.default_rng(3), PAIRS_AT_ONCE)
    pairs = length_pairs(np.random.default_rng(3), name, **NO_MEANS)
    expected = list(zip(inputs.tolist(), outputs.tolist(), strict=True))
    assert list(islice(pairs, PAIRS_AT_ONCE)) == expected
    assert next(pairs) != expected[0], "the second lot repeats the first"


def test_pairs_of_fixed_and_lognormal_lengths():
    means = {"input_tokens": 30, "output_tokens": 5}
    sigmas = {"input_sigma": 1.0, "output_sigma": 0.5}
    fixed = length_pairs(np.random.default_rng(0), "fixed", **means, **sigmas)
    assert list(islice(fixed, 2000)) == [(30, 5)] * 2000
    drawn = length_pairs(np.random.default_rng(0), "lognormal", **means, **sigmas)
    pairs = np.array(list(islice(drawn, 50_000)))
    assert pairs.mean(axis=0) == pytest.approx([30, 5], rel=0.02)

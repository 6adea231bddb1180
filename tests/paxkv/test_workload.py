"""Lengths against the paper's means and the tails of its data, arrivals, prompts."""

import numpy as np
import pytest

from paxkv import recall
from paxkv.workload import (
    SHAREGPT_CONTEXT,
    WorkloadConfig,
    arrival_times_s,
    recall_workload,
    scale_lengths,
    score_recall,
    sharegpt_lengths,
    sharegpt_quantiles,
)


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
        table = sharegpt_quantiles()[name]
        assert (np.diff(table) >= 0).all()
        found = np.percentile(lengths, levels)
        np.testing.assert_allclose(found, table[levels], rtol=tolerance, atol=1)


def test_filtering_the_pair_again_would_miss_the_band():
    """Why an output is drawn again and not the pair."""
    rng = np.random.default_rng(0)
    table, levels = sharegpt_quantiles(), np.linspace(0, 1, 101)
    pairs = [
        np.interp(rng.random(100_000), levels, table[name])
        for name in ("input_tokens", "output_tokens")
    ]
    kept = pairs[0] + pairs[1] < SHAREGPT_CONTEXT
    assert pairs[0][kept].mean() < 0.95 * 161.31


def test_scaled_lengths_stay_in_the_context():
    rng = np.random.default_rng(1)
    inputs, outputs = sharegpt_lengths(rng, 20_000)
    for max_context in (64, 1024, 2048, 8192):
        scaled = [scale_lengths(lengths, max_context) for lengths in (inputs, outputs)]
        assert min(lengths.min() for lengths in scaled) >= 1
        assert (scaled[0] + scaled[1]).max() <= max_context
    assert scale_lengths(np.array([1, 2, 3, 2047]), 1024).tolist() == [1, 1, 1, 1023]


def test_arrivals():
    rng = np.random.default_rng(0)
    closed = WorkloadConfig(num_requests=5)
    assert arrival_times_s(rng, closed).tolist() == [0.0] * 5
    poisson = WorkloadConfig(num_requests=20_000, arrival="poisson", rate_per_s=4.0)
    times_s = arrival_times_s(rng, poisson)
    gaps_s = np.diff(times_s)
    assert (gaps_s >= 0).all()
    assert gaps_s.mean() == pytest.approx(0.25, rel=0.03)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(1.0, abs=0.03)  # exponential


def test_recall_workload_fits_and_scores():
    config = WorkloadConfig(num_requests=300, seed=3)
    workload = recall_workload(config, 1024)
    assert workload == recall_workload(config, 1024), "not a function of the seed"
    assert len(workload.items) == 300
    outputs = []
    for item, prompt in zip(workload.items, workload.prompts, strict=True):
        assert item.prompt_ids == prompt.prompt_ids
        assert len(item.prompt_ids) + item.max_tokens <= 1024
        assert item.max_tokens >= recall.VALUE_LEN
        outputs.append(list(prompt.answer_ids[: item.max_tokens]))
    inputs, drawn = sharegpt_lengths(np.random.default_rng(3), 300)
    too_short = (scale_lengths(inputs, 1024) < 10) | (scale_lengths(drawn, 1024) < 2)
    assert workload.num_raised == too_short.sum() > 0
    right, answered = score_recall(workload.prompts, outputs)
    assert right == answered >= 300
    outputs[0][0] ^= 1
    assert score_recall(workload.prompts, outputs) == (right - 1, answered)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"num_requests": 0}, "num_requests=0"),
        ({"num_requests": 1, "seed": -1}, "workload.seed=-1"),
        ({"num_requests": 1, "arrival": "bursts"}, "arrival='bursts'"),
        ({"num_requests": 1, "rate_per_s": 0.0}, "rate_per_s=0.0"),
    ],
)
def test_refused_settings_are_named(settings, named):
    with pytest.raises(ValueError, match=named):
        WorkloadConfig(**settings)


def test_a_context_too_short_is_named():
    with pytest.raises(ValueError, match="max_context=8"):
        recall_workload(WorkloadConfig(num_requests=1), 8)

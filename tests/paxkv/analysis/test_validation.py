"""Errors of predictions and agreement of rankings, counted by hand."""

import math

import pytest

from paxkv.analysis.validation import (
    COMPARED,
    prediction_table,
    predictions,
    rank_agreement,
)


def metrics(value: float) -> dict:
    spread = {"p50": value, "p95": 2 * value}
    return {
        "latency": {"ttft_s": spread, "tpot_s": spread},
        "throughput_tokens_per_s": 1 / value,
    }


def test_errors_are_those_of_the_medians():
    found = predictions([metrics(x) for x in (1.0, 2.0, 4.0)], [metrics(2.2)] * 3)
    assert [one.name for one in found] == [*COMPARED]
    assert found[0].error_percent == pytest.approx(10.0)
    assert found[0].spread_percent == pytest.approx(150.0)
    assert found[-1].error_percent == pytest.approx(100 * (2.0 / 2.2 - 1))
    assert "+10.0" in prediction_table(found)


def test_as_many_simulations_as_runs():
    with pytest.raises(ValueError, match="2 runs and 1 simulations"):
        predictions([metrics(1.0)] * 2, [metrics(1.0)])
    with pytest.raises(ValueError, match="at least one"):
        predictions([], [])


def test_rankings():
    assert rank_agreement([1.0, 2.0, 3.0], [10.0, 20.0, 30.0]) == pytest.approx(1.0)
    assert rank_agreement([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == pytest.approx(-1.0)
    # of six pairs one is the other way round
    assert rank_agreement([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0]) == pytest.approx(
        4 / 6
    )
    assert math.isnan(rank_agreement([1.0, 1.0], [1.0, 2.0]))

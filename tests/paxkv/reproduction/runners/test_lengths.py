"""Statistics of lengths that are known."""

from typing import Any

import pytest

from configs import trial
from paxkv.reproduction.runners.lengths import run


def tree_of(num_pairs=100, **workload) -> dict[str, Any]:
    config = trial.get_config("opt_13b,a100_40,fixed")
    config.workload.update(input_tokens=30, output_tokens=5, **workload)
    return {**config.to_dict(), "num_pairs": num_pairs}


def test_fixed_lengths_are_their_own_statistics():
    found = run(tree_of(), "calibrated")
    assert found["input"] == {"mean": 30.0, "p50": 30.0, "p95": 30.0}
    assert found["output"] == {"mean": 5.0, "p50": 5.0, "p95": 5.0}
    assert found["longest"] == 35


def test_lengths_are_those_of_the_workload_and_its_seed():
    drawn = tree_of(
        20_000, lengths="lognormal", too_long="clip", input_sigma=1.0, output_sigma=0.0
    )
    found = run(drawn, "calibrated")
    assert found["input"]["mean"] == pytest.approx(30, rel=0.03)
    # of a log-normal of mean m and sigma 1: m·exp(1.645 - 1/2), and m·exp(-1/2)
    assert found["input"]["p95"] == pytest.approx(94.3, rel=0.05)
    assert found["input"]["p50"] == pytest.approx(18.2, rel=0.05)
    assert found["output"]["p95"] == 5
    assert run(drawn, "ideal") == found
    drawn["workload"]["seed"] = 1
    assert run(drawn, "calibrated") != found

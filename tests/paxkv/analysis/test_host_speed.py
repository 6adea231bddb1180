"""Medians per operation, and what the goals say of them."""

import pytest

from paxkv.analysis.host_speed import (
    Measure,
    manager_measure,
    medians_us,
    pool_measure,
    step_measure,
    stream_measure,
    table,
)
from paxkv.host_stream import RecordedStep, Stream


def step(admitted=(), finished=(), num_running=4) -> RecordedStep:
    return RecordedStep(admitted=admitted, finished=finished, num_running=num_running)


STREAM = Stream(
    prompts=((1,),) * 3,
    outputs=((1,),) * 3,
    steps=(step(), step(admitted=(0, 1), finished=(0,)), step(), step(finished=(1, 2))),
    num_warm=1,
    num_rows=4,
    max_context=8,
)


def test_medians_are_per_operation_of_steps_that_have_any():
    seconds = {
        "whole": [3e-6, 1e-6, 2e-6],
        "decode": [2e-6, 8e-6, 12e-6],  # of 2, 4, 4
        "admit": [10e-6, 1e-6, 1e-6],  # of 2, none, none
        "free": [6e-6, 1e-6, 4e-6],  # of 1, none, 2
    }
    medians = medians_us(STREAM, seconds)
    assert medians == pytest.approx({"whole": 2, "decode": 2, "admit": 5, "free": 4})
    both = {"paxkv": medians, "vllm": {"decode": 20.0, "admit": 50.0, "free": 40.0}}
    measure = stream_measure("all", STREAM, both)
    assert measure.ours == pytest.approx((10 * 2 + 2 * 5 + 3 * 4) / 3)
    assert measure.ratio == pytest.approx(0.1)
    assert measure.met
    assert manager_measure("one", both, ["admit"], with_peer=False).peer is None
    assert manager_measure("two", both, ["admit", "free"], limit=8.0).met is False


def test_kinds_that_no_step_asks_for_have_no_median():
    still = Stream(
        prompts=(), outputs=(), steps=(step(),), num_warm=0, num_rows=4, max_context=8
    )
    assert set(medians_us(still, {"decode": [4e-6], "admit": [1e-6]})) == {"decode"}


@pytest.mark.parametrize(
    ("ours", "peer", "limit", "ratio_limit", "met"),
    [
        (1.0, None, None, None, None),
        (1.0, None, 2.0, None, True),
        (3.0, 100.0, 2.0, None, False),
        (1.0, 4.0, None, 0.3, True),
        (1.0, 3.0, None, 0.3, False),
        (1.0, None, None, 0.3, None),  # nobody to compare with
    ],
)
def test_a_goal_is_met_not_met_or_open(ours, peer, limit, ratio_limit, met):
    measure = Measure(
        name="x", unit="µs", ours=ours, peer=peer, limit=limit, ratio_limit=ratio_limit
    )
    assert measure.met is met
    assert measure.row()["met"] is met
    assert measure.row()["ratio"] == (None if peer is None else ours / peer)


def test_a_step_is_measured_without_a_peer():
    measure = step_measure("steps", {"paxkv": {"whole": 5.0}}, ratio_limit=0.3)
    assert (measure.ours, measure.peer) == (5.0, None)
    assert "no peer" in table([measure])


def test_pools_are_compared_by_the_slowest():
    assert pool_measure("pools", {10: 5.0, 100: 5.4}).met
    assert pool_measure("pools", {10: 5.0, 100: 4.0}).ours == 1.25


def test_the_table_names_goals_and_verdicts():
    lines = table(
        [
            Measure(name="a", unit="µs", ours=1.0, limit=2.0),
            Measure(name="longer", unit="µs", ours=9.0, peer=10.0, ratio_limit=0.5),
        ]
    ).splitlines()
    assert lines[1].endswith("met") and "≤ 2" in lines[1]
    assert lines[2].endswith("not met") and "≤ 0.5 of vLLM's" in lines[2]
    assert "0.90" in lines[2]

"""Runs are told apart by what decides them, and a search becomes a row."""

import json
import math

import pytest

from paxkv.analysis.capacity import summarized
from paxkv.analysis.capacity_rows import (
    RUN,
    attempt_of,
    capacity_metrics,
    key_of,
    rate_key,
    rate_unit,
    row_key,
    seeds_line,
    tree_at,
    tried_table,
)
from paxkv.results import to_line

TREE = {
    "name": "one",
    "output_folder": "results/one",
    "profiles": ("ideal",),
    "cache": {"block_size": 16},
    "workload": {
        "arrival": "poisson",
        "structure": "single",
        "rate_per_s": 1.0,
        "rate_scale": 1.0,
        "seed": 0,
    },
}


def run_row(rate, is_met, ttft=0.5, tpot=0.01):
    slo = {"percentile": 99.0, "ttft_found_s": ttft, "tpot_found_s": tpot, "is_met": is_met}
    return {
        "experiment": RUN,
        "kind": "simulated",
        "profile": "ideal",
        "config": tree_at(TREE, rate),
        "metrics": {"slo": {**slo, "goodput_per_s": rate * 0.9}},
    }


def test_the_rate_is_that_of_the_arrivals():
    assert rate_key(TREE) == "workload.rate_per_s"
    trace = {"workload": {**TREE["workload"], "arrival": "trace"}}
    assert rate_key(trace) == "workload.rate_scale"
    assert tree_at(trace, 2.0)["workload"]["rate_scale"] == 2.0
    changed = {"rate_per_s": 4.0, "seed": 3}
    assert tree_at(TREE, 4.0, seed=3)["workload"] == TREE["workload"] | changed
    assert rate_unit(TREE) == "requests/s"
    assert rate_unit(trace) == "times the trace's rate"
    chat = {"workload": {**TREE["workload"], "structure": "chat"}}
    assert rate_unit(chat) == "sessions/s"
    for arrival in ("at_once", "closed_loop"):
        with pytest.raises(ValueError, match=f"'{arrival}' has no rate"):
            rate_key({"workload": {"arrival": arrival}})


def test_a_written_run_is_found_again_and_others_are_not():
    row = json.loads(to_line(run_row(2.0, True)))
    wanted = tree_at(TREE, 2.0)
    assert key_of(row) == row_key(RUN, "simulated", "ideal", wanted)
    elsewhere = {**wanted, "output_folder": "results/other", "name": "two"}
    assert key_of(row) == row_key(RUN, "simulated", "ideal", elsewhere)
    for other in (
        row_key(RUN, "simulated", "ideal", tree_at(TREE, 2.1)),
        row_key(RUN, "simulated", "ideal", tree_at(TREE, 2.0, seed=1)),
        row_key(RUN, "simulated", "ideal", {**wanted, "cache": {"block_size": 8}}),
        row_key(RUN, "simulated", "calibrated", wanted),
        row_key(RUN, "measured", "ideal", wanted),
        row_key("capacity", "simulated", "ideal", wanted),
    ):
        assert key_of(row) != other


def test_a_search_becomes_metrics_and_a_table():
    rows = [
        run_row(1.0, True),
        run_row(4.0, False, ttft=9.0),
        run_row(2.0, True, tpot=None),
    ]
    capacity = summarized([attempt_of(row) for row in rows])
    metrics = capacity_metrics(capacity, rows)
    assert metrics["capacity_per_s"] == 2.0
    assert metrics["goodput_per_s"] == 1.8
    assert metrics["missed_per_s"] == 4.0
    assert metrics["outcome"] == "FOUND"
    assert metrics["is_monotone"] is True
    assert [one["rate_per_s"] for one in metrics["tried"]] == [1.0, 2.0, 4.0]
    assert metrics["tried"][1]["latency_s"] == {"p99 TTFT": 0.5}
    assert metrics == json.loads(to_line(metrics))
    lines = tried_table(capacity).splitlines()
    assert [line.split()[-1] for line in lines] == ["SLO", "met", "met", "missed"]
    assert lines[3].split() == ["4", "9", "0.01", "missed"]


def test_nothing_met_has_no_goodput():
    rows = [run_row(1.0, False, ttft=math.nan)]
    capacity = summarized([attempt_of(row) for row in rows])
    assert capacity_metrics(capacity, rows)["goodput_per_s"] == 0.0
    assert capacity.words() == "no rate meets it: at 1/s p99 TPOT is 0.01 s"


def test_seeds_have_a_mean_and_a_range():
    assert seeds_line("x", [1.0, 2.0, 6.0]) == "x: 3 (range 1 to 6, 3 seeds)"
    assert seeds_line("x", [1.5]) == "x: 1.5 (range 1.5 to 1.5, 1 seed)"

"""Means over steps with a queue, and the paper's columns, on steps counted by hand."""

import math

import pytest

from paxkv.analysis.waste import CLASSES, HELD, PAPER_COLUMNS, summarize_waste
from paxkv.types import PoolPartition, StepMetrics

POOL = 100


def make_step(
    running: int, waiting: int, *, table_bytes: int = 64, **classes: int
) -> StepMetrics:
    known = {name: 0 for name in (*CLASSES, "unusable_free")} | classes
    if "free" not in classes:
        known["free"] = POOL - sum(classes.get(name, 0) for name in CLASSES)
    return StepMetrics(
        step=0,
        now_s=0.0,
        duration_s=0.1,
        host_s=0.0,
        num_prefill_tokens=0,
        num_decode_tokens=running,
        num_running=running,
        num_waiting=waiting,
        num_preempted=0,
        partitions=(PoolPartition(**known),),
        table_bytes=table_bytes,
    )


def test_means_are_over_steps_with_a_queue():
    summary = summarize_waste(
        [
            make_step(2, 1, token_states=30, tail=10, reserved=20, internal=20, rounding=8),
            make_step(4, 3, token_states=50, tail=6, reserved=20, internal=20, rounding=0),
            make_step(1, 0, token_states=1, tail=3, table_bytes=128),  # nobody waits
        ]
    )
    assert summary.num_positions == POOL
    assert (summary.num_steps, summary.num_queue_steps) == (3, 2)
    assert summary.capacity == 3.0
    assert summary.running_mean == pytest.approx(7 / 3)
    assert summary.running_peak == 4
    assert summary.partition_percent == {
        "token_states": 40.0,
        "tail": 8.0,
        "reserved": 20.0,
        "internal": 20.0,
        "rounding": 4.0,
        "cached": 0.0,
        "free": 8.0,
    }
    assert summary.paper_percent == {
        "token_states": 40.0,
        "reservation": 20.0,
        "internal": 28.0,
        "external_and_others": 12.0,
    }
    assert summary.held_per_request == (88 / 2 + 96 / 4) / 2
    assert summary.tail_per_request == (10 / 2 + 6 / 4) / 2
    assert (summary.table_bytes_mean, summary.table_bytes_peak) == (256 / 3, 128)


def test_external_fragmentation_is_rounding_and_free_that_no_run_serves():
    summary = summarize_waste(
        [
            make_step(1, 1, token_states=60, rounding=10, free=30, unusable_free=30),
            make_step(1, 1, token_states=60, rounding=10, free=30, unusable_free=0),
        ]
    )
    assert summary.unusable_free_percent == 15.0
    assert summary.external_percent == 25.0


def test_both_partitions_name_every_position_once():
    assert sorted(sum(PAPER_COLUMNS.values(), ())) == sorted(CLASSES)
    assert set(HELD) == set(CLASSES) - {"free", "cached"}
    summary = summarize_waste([make_step(1, 1, token_states=33, tail=7, cached=11)])
    assert sum(summary.partition_percent.values()) == pytest.approx(100)
    assert sum(summary.paper_percent.values()) == pytest.approx(100)


def test_without_a_queue_capacity_is_unknown():
    summary = summarize_waste([make_step(3, 0, token_states=5)])
    assert summary.num_queue_steps == 0
    assert summary.running_mean == 3.0
    assert math.isnan(summary.capacity)
    assert math.isnan(summary.partition_percent["free"])
    assert math.isnan(summary.held_per_request)


def test_a_queue_in_front_of_an_empty_engine_counts_as_waste():
    summary = summarize_waste([make_step(0, 2), make_step(1, 1, token_states=50)])
    assert summary.partition_percent["free"] == 75.0
    assert summary.capacity == 0.5
    assert summary.held_per_request == 50.0


def test_without_steps_all_is_unknown():
    summary = summarize_waste([])
    assert (summary.num_steps, summary.running_peak, summary.table_bytes_peak) == (0, 0, 0)
    assert math.isnan(summary.running_mean)
    assert math.isnan(summary.paper_percent["token_states"])

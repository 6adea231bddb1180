"""The trace has the tracks, spans and counters that the events say."""

import json

import pytest

from paxkv.analysis.event_replay import replay
from paxkv.analysis.perfetto import ENGINE, REQUESTS, STEPS, TRANSFERS, trace, write_trace
from paxkv.events import Event, EventKind
from paxkv.results import ResultsNotWritten
from tests.event_streams import random_events, sample_events


def records(events, num_blocks=(5,)):
    return trace(events, replay(events, num_blocks))["traceEvents"]


def of_track(found, process, thread):
    return [r for r in found if (r["pid"], r.get("tid")) == (process, thread)]


def test_steps_last_as_long_as_the_executor_took():
    steps = [r for r in of_track(records(sample_events()), ENGINE, STEPS) if r["ph"] == "X"]
    assert [(r["name"], r["ts"], r["dur"]) for r in steps] == [
        ("step 1", 1e6, 0.5e6),
        ("step 2", 2e6, 0.5e6),
        ("step 3", 3e6, 0.5e6),
        ("step 4", 4e6, 0.75e6),
    ]
    assert [r["args"]["num_tokens"] for r in steps] == [8, 2, 1, 1]


def test_transfers_are_counted_per_step():
    found = of_track(records(sample_events()), ENGINE, TRANSFERS)
    assert [(r["ts"], r["args"]) for r in found if r["ph"] == "i"] == [
        (2e6, {"copy": 1}),
        (3e6, {"swap_out": 1}),
        (4e6, {"swap_in": 1}),
    ]


def test_each_request_has_a_track_of_its_phases():
    found = records(sample_events())
    names = {
        r["tid"]: r["args"]["name"]
        for r in found
        if r["pid"] == REQUESTS and r["name"] == "thread_name"
    }
    assert names == {1: "request 7", 2: "request 8"}
    phases = [r for r in of_track(found, REQUESTS, 2) if r["ph"] == "X"]
    assert [r["name"] for r in phases] == ["queued", "running", "preempted", "running"]


def test_counters_add_up_to_the_pool():
    counters = [r for r in records(sample_events()) if r["ph"] == "C"]
    assert [r["args"] for r in counters] == [
        {"used": 0, "cached": 0, "free": 4},
        {"used": 2, "cached": 0, "free": 2},
        {"used": 3, "cached": 0, "free": 1},
        {"used": 0, "cached": 1, "free": 3},
        {"used": 1, "cached": 0, "free": 3},
    ]
    events, _ = random_events(3)
    for record in records(events, (17, 9)):
        if record["ph"] == "C":
            pool = 16 if record["name"].endswith("0") else 8
            assert sum(record["args"].values()) == pool


def test_slices_of_a_track_do_not_overlap():
    """Steps whose duration is more than the time since the last one are cut."""
    events = [
        Event(kind=EventKind.STEP, step=step, now_s=step / 3, duration_s=1.0)
        for step in range(1, 9)
    ]
    end_us = 0.0
    for record in of_track(records(events), ENGINE, STEPS):
        if record["ph"] == "X":
            assert record["ts"] >= end_us - 1e-3
            end_us = record["ts"] + record["dur"]


def test_file_is_json_and_times_are_never_negative(tmp_path):
    path = tmp_path / "trace.json"
    events = sample_events()
    write_trace(path, events, replay(events, (5,)))
    found = json.loads(path.read_text())
    assert found["displayTimeUnit"] == "ms"
    for record in found["traceEvents"]:
        assert record["ph"] in "MXiC"
        assert record.get("ts", 0) >= 0
        assert record.get("dur", 0) >= 0


def test_a_folder_that_is_missing_is_named(tmp_path):
    with pytest.raises(ResultsNotWritten, match="missing"):
        write_trace(tmp_path / "missing" / "trace.json", [], replay([], (5,)))

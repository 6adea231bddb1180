"""Two runs: what changed, where the time went, and what went with it."""

import json
from dataclasses import asdict

import pytest

from paxkv.analysis.reports.comparison import compare_runs, explained_differences
from paxkv.analysis.reports.runs import load_runs
from paxkv.analysis.reports.text import report_text
from paxkv.analysis.request_records import RequestRecord
from tests.report_rows import trial_row, write_rows


def record(name, queueing_s, decode_s):
    done_s = queueing_s + decode_s
    one = RequestRecord(
        request_id=0,
        arrival_s=0.0,
        first_scheduled_s=queueing_s,
        first_token_s=queueing_s,
        finish_s=done_s,
        num_prompt_tokens=1,
        num_output_tokens=2,
        num_cached_tokens=0,
        num_preemptions=0,
        num_recomputed_tokens=0,
        num_swaps=0,
        reason="LENGTH",
        ttft_causes_s={"queueing": queueing_s},
        decode_causes_s={"decode": decode_s},
    )
    return json.dumps({"name": name, "profile": "calibrated"} | asdict(one)) + "\n"


def write_run(folder, name, *, records=(), **metrics):
    config = metrics.pop("config", {})
    write_rows(folder / "rows.jsonl", trial_row(name=name, config=config, **metrics))
    if records:
        (folder / "requests.jsonl").write_text("".join(records))
    return str(folder)


@pytest.fixture
def folders(tmp_path):
    before = write_run(
        tmp_path / "a",
        "a",
        records=[record("a", 1.0, 3.0), record("a", 3.0, 3.0), record("other", 99.0, 9.0)],
    )
    after = write_run(
        tmp_path / "b",
        "b",
        records=[record("b", 8.0, 2.5)],
        config={"cache.block_size": 256},
        ttft_p95_s=4.0,
        num_preemptions=50,
        num_recomputed_tokens=150,
        num_queue_steps=410,
    )
    return before, after


def test_the_split_shows_where_and_counters_go_with_it(folders):
    [(one, other)] = load_runs(folders)
    latency, causes, counters = explained_differences(one, other)
    assert latency == "Changed most: TTFT p95 4.00 times."
    # a: 2 s of queueing and 3 s of decode; b: 8 s and 2.5 s
    assert causes == (
        "In the mean a request took 5.5 s longer than 5 s. The split of each request's "
        "time shows where: queueing +6 s (109 %), and the other way decode -0.5 s (9 %)."
    )
    # 50 preemptions of 100 requests; 150 of 10,000 tokens
    assert counters == (
        "With this goes, the largest change first: preemptions per request rose from 0 to "
        "0.5; % of computed tokens computed again rose from 0 to 1.5; % of steps with a "
        "queue rose from 40 to 41."
    )
    assert "because" not in " ".join((latency, causes, counters))


def test_the_section(folders):
    [(one, other)] = load_runs(folders)
    text = report_text([compare_runs(one, other)])
    assert "They differ in cache.block_size (16 → 256)." in " ".join(text.split())
    assert "TTFT p95, s" in text and "4.00" in text
    assert "mean of 2 and 1 requests" in text


def test_without_records_the_seconds_are_not_explained(tmp_path):
    pair = [write_run(tmp_path / name, name) for name in "ab"]
    [(one, other)] = load_runs(pair)
    latency, causes, counters = explained_differences(one, other)
    assert latency == "Latency and throughput are the same within 2 %."
    assert "where the seconds went cannot be said" in causes
    assert counters == "No counter changed by more than 2 %."
    assert "Their configs are the same, but for seeds." in compare_runs(one, other).notes


def test_other_machines_are_said(tmp_path):
    before = write_run(tmp_path / "a", "a")
    after = write_run(tmp_path / "b", "b", device="1 x h100")
    [(one, other)] = load_runs([before, after])
    assert any("DIFFERENT PLACES" in note for note in compare_runs(one, other).notes)


def test_records_of_a_sweep_lie_in_the_folders_of_its_cells(tmp_path):
    cells = {"a0": ("a", 0, 1.0), "a1": ("a", 1, 3.0), "b0": ("b", 0, 5.0)}
    rows = [
        {**trial_row(name=name, seed=seed), "cell_id": cell}
        for cell, (name, seed, _) in cells.items()
    ]
    write_rows(tmp_path / "rows.jsonl", *rows)
    for cell, (name, _, queueing_s) in cells.items():
        write_run(tmp_path / "cells" / cell, name, records=[record(name, queueing_s, 1.0)])
    [(one, other)] = load_runs([str(tmp_path)])
    assert (one.num_records, one.causes_s["queueing"]) == (2, 2.0)  # of both seeds
    assert (other.num_records, other.causes_s["queueing"]) == (1, 5.0)


def test_errors_of_rounding_are_no_counts(tmp_path):
    path = write_rows(
        tmp_path / "rows.jsonl",
        trial_row(name="a", host_mean_s=1e-15),
        trial_row(name="b", host_mean_s=2e-3),
    )
    [(one, other)] = load_runs([str(path)])
    sentence = explained_differences(one, other)[-1]
    assert sentence.endswith("first: host time of a step, ms rose from 0 to 2.")

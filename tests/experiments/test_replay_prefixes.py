"""The replay reports, writes rows and a figure, and says what is wrong in one line."""

import json
import os
import re
from pathlib import Path

import pytest

from tests.experiments.running import ROOT, run_experiment

BESIDE_THE_REPOSITORY = "../shared/data/mooncake/conversation_trace.jsonl"
MOONCAKE = Path(ROOT, os.environ.get("PAXKV_MOONCAKE_TRACE", BESIDE_THE_REPOSITORY))


def write_trace(path, *lookups, extra=""):
    lines = [
        json.dumps(dict(timestamp=0, input_length=9, output_length=1, hash_ids=ids))
        for ids in lookups
    ]
    path.write_text("\n".join([*lines, extra]).rstrip("\n") + "\n")
    return f"--trace={path}"


LOOKUPS = ([0, 1], [2, 3], [0, 1], [2, 3], [0, 1])


def test_rows_table_and_figure(tmp_path):
    trace = write_trace(tmp_path / "trace.jsonl", *LOOKUPS)
    out, plot = tmp_path / "new" / "rows.jsonl", tmp_path / "new" / "hit.png"
    done = run_experiment(
        "replay_prefixes",
        trace,
        "--capacities=inf,4,2",
        "--policies=lru,priority,cost_aware,paxkv.policies.eviction:Mru",
        f"--out={out}",
        f"--plot={plot}",
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["num_blocks"] for row in rows] == [2] * 5 + [4] * 5 + [None] * 5
    hits = {(row["num_blocks"], row["policy"]): row["num_hits"] for row in rows}
    assert hits[None, "lru"] == hits[4, "belady"] == 6 and hits[2, "lru"] == 0
    assert all(row["num_lookups"] == 10 for row in rows)
    assert all(row["regret_points"] >= 0 for row in rows)
    assert rows[0]["kind"] == "simulated" and rows[0]["trace"] == "trace.jsonl"
    assert re.search(r"inf +lru +10 +6 +60.00 +0 +0.00", done.stdout)
    assert plot.exists() or "No figure" in done.stdout


def test_malformed_lines_are_shown_counted_and_fail(tmp_path):
    trace = write_trace(tmp_path / "trace.jsonl", *LOOKUPS, extra="{}\n" * 7 + "[]")
    done = run_experiment("replay_prefixes", trace, "--capacities=4", "--policies=lru")
    assert done.returncode == 1
    assert "8 malformed lines, which are left out" in done.stdout
    assert "line 6: has no" in done.stdout and "line 11" not in done.stdout
    assert "FAILED: 8 lines" in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--trace=/nowhere/trace.jsonl", "No such file"),
        ("--trace=", "--trace is missing"),
        ("--capacities=4,x", "--capacities has 'x'; give blocks ≥ 1"),
        ("--capacities=0", "--capacities has '0'"),
        ("--capacities=", "--capacities is empty"),
        ("--capacities=1,4", "num_blocks=1 cannot hold the longest request, of 2 blocks"),
        ("--policies=lur", r"eviction policy 'lur' is unknown \(did you mean 'lru'\?\)"),
        ("--policies=paxkv.nothing:Lru", "'paxkv.nothing' cannot be imported"),
    ],
)
def test_wrong_flags_end_with_one_line(tmp_path, flag, message):
    trace = write_trace(tmp_path / "trace.jsonl", *LOOKUPS)
    done = run_experiment("replay_prefixes", trace, flag)
    assert done.returncode == 2
    assert re.search(message, done.stderr.splitlines()[-1])
    assert "Traceback" not in done.stderr


def test_a_trace_without_look_ups_is_refused(tmp_path):
    done = run_experiment("replay_prefixes", write_trace(tmp_path / "t.jsonl", []))
    assert done.returncode == 2 and "has no look-up" in done.stderr


@pytest.mark.skipif(
    not MOONCAKE.is_file(),
    reason="needs Mooncake's conversation_trace.jsonl; set PAXKV_MOONCAKE_TRACE to it",
)
def test_mooncakes_conversations_hit_as_published(tmp_path):
    """Without limit every block hits but at its first look-up: exactly 36.6 %."""
    out = tmp_path / "rows.jsonl"
    done = run_experiment(
        "replay_prefixes",
        f"--trace={MOONCAKE}",
        "--capacities=1000,10000,inf",
        "--policies=lru",
        f"--out={out}",
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    lru = [row for row in rows if row["policy"] == "lru"]
    assert lru[-1]["num_requests"] == 12_031 and lru[-1]["num_malformed"] == 0
    assert {row["num_lookups"] for row in rows} == {288_500}
    hits = [row["num_hits"] for row in lru]
    assert hits[-1] == 288_500 - 182_790 == 105_710
    assert round(lru[-1]["hit_rate_percent"], 1) == 36.6
    assert hits[0] < hits[1] < hits[2]
    optimum = [row["num_hits"] for row in rows if row["policy"] == "belady"]
    assert hits[0] < optimum[0] and hits[1] < optimum[1] <= optimum[2] == hits[2]

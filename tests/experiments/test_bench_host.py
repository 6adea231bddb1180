"""The benchmark runs small, says whether the peer is there, and writes rows."""

import json
import re

import pytest

from tests.experiments.running import run_experiment

TINY = (
    "--running=3,5",
    "--serving=4",
    "--pools=300,600",
    "--pool_running=2",
    "--steps=6",
    "--batch=2",
    "--prompt=40",
    "--vllm=",
)


def test_rows_have_times_goals_and_their_circumstances(tmp_path):
    out = tmp_path / "rows.jsonl"
    done = run_experiment("bench_host", *TINY, f"--out={out}")
    assert done.returncode == 0, done.stderr
    assert "vLLM is absent" in done.stdout
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    cases = [
        "decode",
        "decode",
        "serving",
        "manager",
        "look-up",
        "look-up",
        "look-up",
        "pools",
    ]
    assert [row["case"] for row in rows] == cases
    for row in rows:
        assert row["vllm"] is None and row["gc"] == "frozen" and row["clock"] == "wall"
        assert row["machine"]["cores"] >= 1 and row["versions"]["numpy"]
        assert row["command"] and row["num_steps"] == 6
        for kinds in row["seconds"].values():
            assert {len(seconds) for seconds in kinds.values()} == {6}
    assert set(rows[-1]["seconds"]) == {"paxkv", "600"}
    assert rows[-1]["num_blocks"] == [300, 600]
    measures = [measure for row in rows for measure in row["measures"]]
    assert all(measure["ours"] > 0 and measure["peer"] is None for measure in measures)
    for measure in measures:
        assert measure["name"] in done.stdout
    goals = {m["name"]: m["limit"] for m in measures if m["limit"] is not None}
    assert goals["look up 40 tokens, cached"] == 15


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--running=0", r"--running=\[0\] must be at least 1"),
        ("--pools=few", r"--pools=\['few'\] must be numbers"),
        ("--vllm=/nowhere", "--vllm: '/nowhere' must be PYTHON:SOURCE"),
        ("--steps=4000", "record fewer steps"),
    ],
)
def test_wrong_flags_end_with_one_line(flag, message):
    done = run_experiment("bench_host", *TINY, flag)
    assert done.returncode == 2
    assert re.search(message, done.stderr.splitlines()[-1])

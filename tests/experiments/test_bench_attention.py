"""The benchmark runs small, writes rows, and measures nothing twice."""

import json
import re

import pytest

pytest.importorskip("numba")

from tests.experiments.running import run_experiment

TINY = (
    "--contexts=40",
    "--batches=2",
    "--block_sizes=16",
    "--dtypes=float32",
    "--heads=4,2,16",
    "--rounds=2",
)


@pytest.mark.parametrize("mode", ["decode", "prefill"])
def test_rows_are_written_once(tmp_path, mode):
    out = tmp_path / "rows.jsonl"
    flags = (*TINY, f"--mode={mode}", f"--out={out}", "--implementations=cpu,xla")
    first = run_experiment("bench_attention", *flags)
    assert first.returncode == 0, first.stderr
    (row,) = [json.loads(line) for line in out.read_text().splitlines()]
    yardstick = "product" if mode == "prefill" else "read"
    assert set(row["median_ms"]) == {"cpu", "xla", yardstick}
    assert row["ratio"][yardstick] == 1
    assert all(len(seconds) == 2 for seconds in row["seconds"].values())
    assert max(row["errors"].values()) < 1e-4
    assert row["compared_with"] == "reference"
    assert row["machine"]["cores"] >= 1 and row["versions"]["jax"]
    second = run_experiment("bench_attention", *flags)
    assert second.returncode == 0, second.stderr
    assert len(out.read_text().splitlines()) == 1
    assert "cpu" in second.stderr + second.stdout


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--contexts=0", "--contexts=\\[0\\] must be at least 1"),
        ("--heads=4,3,8", "H a multiple of K"),
        ("--dtypes=int4", "unknown; choose from"),
        ("--torch_python=/nowhere", "--torch_python=/nowhere"),
        ("--implementations=gpu", "error: .*gpu"),
    ],
)
def test_wrong_flags_end_with_one_line(flag, message):
    done = run_experiment("bench_attention", *TINY, flag)
    assert done.returncode == 2
    assert re.search(message, done.stderr.splitlines()[-1])

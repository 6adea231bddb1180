"""The comparison of layouts runs small, counts exactly, and adds rows."""

import json
import re

import pytest

from tests.experiments.running import run_experiment

TINY = ("--pools=3,4,2,8", "--pools=1,2,2,4", "--num_blocks=16", "--rounds=2")


def test_counts_and_rows(tmp_path):
    out = tmp_path / "new" / "rows.jsonl"
    for _ in range(2):
        done = run_experiment("bench_layouts", *TINY, "--moved=2,15", f"--out={out}")
        assert done.returncode == 0, done.stderr
    assert "3/1" in done.stdout and "layouts: 100%" in done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["moved_blocks"] for row in rows] == [2, 15] * 4
    first, other = rows[0], rows[2]
    block = 4 * 2 * 8 * 4  # bytes in one layer
    assert first["ranges_per_block"] == {"layer_major": 3, "block_major": 1}
    assert first["bytes_per_range"] == {"layer_major": block, "block_major": 3 * block}
    assert first["bytes_per_block"] == 3 * block
    assert other["ranges_per_block"] == {"layer_major": 1, "block_major": 1}
    for row in rows:
        assert set(row["ratio"]) == {"swap_out", "swap_in", "read"}
        for op, ms in row["median_ms"].items():
            assert row["ratio"][op] == pytest.approx(ms["layer_major"] / ms["block_major"])
        assert row["versions"]["jax"] and row["machine"]["cores"] >= 1


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--moved=16", r"--moved=\['16'\] must be in \[1, --num_blocks=16\)"),
        ("--pools=1,2,3", "--pools=1,2,3 must be L,B,R,D"),
        ("--out=/proc/none/rows.jsonl", "was not written"),
    ],
)
def test_wrong_flags_end_with_one_line(flag, message):
    done = run_experiment("bench_layouts", *TINY, "--moved=2", flag)
    assert done.returncode == 2
    assert re.search(message, done.stderr.splitlines()[-1])

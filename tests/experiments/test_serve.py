"""The main job, as a user runs it: the shipped model under all four systems."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SYSTEMS = ["contiguous_max", "contiguous_pow2", "contiguous_oracle", "paged"]


def run_serve(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "experiments.serve", *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> tuple[str, list[dict], Path]:
    """Output, rows and folder of one reduced run."""
    folder = tmp_path_factory.mktemp("serve")
    done = run_serve(
        f"--config.output_folder={folder}",
        "--config.workload.num_requests=16",
        "--config.pool_positions=2048",
        "--config.scheduler.max_num_seqs=16",
        "--config.scheduler.max_num_batched_tokens=64",
        "--config.engine.check_invariants=True",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    return done.stdout, rows, folder


def test_every_system_serves_everything_right(served):
    output, rows, _ = served
    assert [row["system"] for row in rows] == SYSTEMS
    scores = {(r["metrics"]["recall_right"], r["metrics"]["recall_answered"]) for r in rows}
    ((right, answered),) = scores
    assert answered >= 16
    assert right / answered >= 0.98
    for row in rows:
        metrics = row["metrics"]
        assert metrics["num_finished"] == 16
        assert metrics["num_rejected"] == metrics["num_aborted"] == 0
        assert metrics["num_programs"] == rows[0]["metrics"]["num_programs"]
        assert sum(metrics["partition_percent"].values()) == pytest.approx(100)
    assert "All tokens of all 16 requests are equal in all rows." in output


def test_pools_are_equal_and_paged_runs_most(served):
    _, rows, _ = served
    assert {row["pool"]["positions"] for row in rows} == {2048}
    at_once = {row["system"]: row["metrics"]["running_mean"] for row in rows}
    assert at_once["paged"] > at_once["contiguous_oracle"] > at_once["contiguous_max"]


def test_rows_say_how_to_repeat_them(served):
    _, rows, _ = served
    for row in rows:
        assert row["schema"] == 1
        assert row["kind"] == "measured"
        assert row["implementation"] != "auto"
        assert row["config"]["workload"]["num_requests"] == 16
        assert "--config.pool_positions=2048" in row["command"]
        assert row["versions"]["jax"]


def test_report_and_figure(served):
    output, _, folder = served
    for words in ("token states", "TTFT p95", "Memory saved", "Kept", "Effect on serving"):
        assert words in output
    assert (folder / "serve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("flag", "named"),
    [
        ("--config.cache.blocksize=32", 'Did you mean "block_size"'),
        ("--config.cache.block_size=0", "block_size=0"),
        ("--config.pool_positions=8", "pool_positions=8"),
        ("--config.workload.arrival=bursts", "arrival='bursts'"),
        ("--config.engine.implementation=fast", "implementation='fast'"),
        ("--config.allocators=()", "allocators is empty"),
        ("--config.output_folder=LICENSE/results", "part of the path is a file"),
    ],
)
def test_bad_settings_are_named(flag, named, tmp_path):
    folder = [] if "output_folder" in flag else [f"--config.output_folder={tmp_path}"]
    done = run_serve(*folder, flag)
    assert done.returncode != 0
    assert named in done.stdout + done.stderr

"""The main job, as a user runs it: the shipped model under all four systems."""

import json
from pathlib import Path

import pytest

from tests.experiments.running import run_experiment

SYSTEMS = ["contiguous_max", "contiguous_pow2", "contiguous_oracle", "paged"]


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> tuple[str, list[dict], Path]:
    """Output, rows and folder of one reduced run."""
    folder = tmp_path_factory.mktemp("serve")
    done = run_experiment(
        "serve",
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
    assert right / answered >= 0.99
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


def test_sharing_and_swapping_change_no_token_and_are_recorded(served, tmp_path):
    """Contiguous regions share and move nothing: their tokens are those to compare with."""
    events = tmp_path / "events.jsonl"
    done = run_experiment(
        "serve",
        f"--config.output_folder={tmp_path}",
        "--config.allocators=('contiguous_oracle','paged')",
        "--config.workload.num_requests=16",
        "--config.pool_positions=1024",
        "--config.scheduler.max_num_seqs=16",
        "--config.scheduler.max_num_batched_tokens=64",
        "--config.scheduler.pressure=preempt_swap",
        "--config.scheduler.retain=('completed',)",
        "--config.cache.prefix_caching=True",
        "--config.cache.granularity=token",
        "--config.cache.host_blocks=64",
        f"--events={events}",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All tokens of all 16 requests are equal in all rows." in done.stdout
    assert "prompt tokens found, %" in done.stdout and "Shared: " in done.stdout
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    oracle, paged = (json.loads(line)["metrics"] for line in lines)
    for name in ("num_cached_tokens", "num_swapped_out_blocks"):
        assert paged[name] > oracle[name] == 0
    before = served[1][-1]["metrics"]
    for name in ("recall_right", "recall_answered", "num_output_tokens"):
        assert paged[name] == before[name]
    out = tmp_path / "out"
    read = run_experiment("inspect_events", f"--events={events}", f"--out={out}")
    assert read.returncode == 0, read.stderr
    counts = dict(line.rsplit(maxsplit=1) for line in read.stdout.splitlines()[:11])
    assert counts["requests"] == "16"
    assert int(counts["blocks swapped out"]) == paged["num_swapped_out_blocks"]
    assert int(counts["prompt tokens found in the cache"]) == paged["num_cached_tokens"]
    assert "cache group 0: 64 blocks x 16 tokens" in read.stdout
    assert (out / "pool.html").is_file()


@pytest.mark.parametrize(
    ("flag", "named"),
    [
        ("--config.cache.block_size=0", "block_size=0"),
        ("--config.pool_positions=8", "pool_positions=8"),
        ("--config.pool_positions=-5", "pool_positions=-5"),
        ("--config.workload.seed=-1", "workload.seed=-1"),
        ("--config.workload.arrival=bursts", "arrival='bursts'"),
        ("--config.engine.implementation=fast", "implementation='fast'"),
        ("--config.allocators=()", "allocators is empty"),
        ("--config.output_folder=LICENSE/results", "part of the path is a file"),
        ("--config.output_folder=", "output_folder is empty"),
        ("--config.cache.eviction=lruu", "eviction='lruu'"),
        ("--config.scheduler.pressure=preempt_swap", "host_blocks=0 cannot hold"),
        ("--events=LICENSE/events.jsonl", "part of the path is a file"),
    ],
)
def test_bad_settings_are_named(flag, named, tmp_path):
    folder = [] if "output_folder" in flag else [f"--config.output_folder={tmp_path}"]
    done = run_experiment("serve", *folder, flag)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert named in last
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--config.cache.prefix_cache=True"], "nearest: cache.prefix_caching"),
        (["--config.scheduler.pressures=wait"], "nearest: scheduler.pressure."),
        (["--config.allocators=('contiguous_max',)", "--events=x"], "lacks it"),
    ],
)
def test_unknown_keys_and_systems_are_refused(flags, named, tmp_path):
    done = run_experiment("serve", f"--config.output_folder={tmp_path}", *flags)
    assert done.returncode == 2
    assert named in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_rejected_requests_are_told_and_not_compared(tmp_path):
    done = run_experiment(
        "serve",
        f"--config.output_folder={tmp_path}",
        "--config.workload.num_requests=2",
        "--config.pool_positions=16",
        "--config.scheduler.max_num_batched_tokens=16",
    )
    assert done.returncode == 1
    assert "contiguous_max rejected requests [0, 1]; of 0 it says: A prompt" in done.stdout
    assert "paged rejected requests [0]; of 0 it says: A prompt" in done.stdout
    assert "differ in requests" not in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith("FAILED: requests were rejected")
    assert "Raise --config.pool_positions" in last

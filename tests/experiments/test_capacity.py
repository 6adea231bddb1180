"""Searches for a capacity as a user does, stops one and resumes it."""

import json

from tests.experiments.running import run_experiment

FLAGS = (
    "--config=configs/planted/queueing.py",
    "--config.slo.ttft_s=0.1",
    "--config.slo.percentile=95",
    "--start=8",
    "--tolerance=0.2",
)


def search(folder, *flags):
    return run_experiment("capacity", *FLAGS, f"--config.output_folder={folder}", *flags)


def rows_of(folder, experiment):
    lines = (folder / "rows.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["experiment"] == experiment]


def test_capacity_over_seeds_and_a_resumed_search(tmp_path):
    done = search(tmp_path, "--seeds=0,1")
    assert done.returncode == 0, done.stdout + done.stderr
    found = [row["metrics"] for row in rows_of(tmp_path, "capacity")]
    assert len(found) == 2
    for metrics in found:
        assert metrics["outcome"] == "FOUND"
        assert metrics["missed_per_s"] <= 1.2 * metrics["capacity_per_s"]
        met = {one["rate_per_s"]: one["is_met"] for one in metrics["tried"]}
        assert met[metrics["capacity_per_s"]] and not met[metrics["missed_per_s"]]
    rates = [metrics["capacity_per_s"] for metrics in found]
    mean = f"calibrated: capacity, requests/s: {sum(rates) / 2:.4g} (range "
    assert mean in done.stdout

    # the same command finds all of its runs; without its last ones it repeats those
    lines = (tmp_path / "rows.jsonl").read_text().splitlines(keepends=True)
    assert search(tmp_path, "--seeds=0,1").returncode == 0
    assert (tmp_path / "rows.jsonl").read_text().splitlines(keepends=True) == lines
    (tmp_path / "rows.jsonl").write_text("".join(lines[:-3]))
    assert search(tmp_path, "--seeds=0,1").returncode == 0
    again = rows_of(tmp_path, "capacity")
    assert [row["metrics"] for row in again] == found
    assert len(rows_of(tmp_path, "capacity_run")) == sum(len(m["tried"]) for m in found)


def test_an_slo_that_no_rate_meets(tmp_path):
    done = search(tmp_path, "--config.slo.ttft_s=0.001", "--lowest=4")
    assert done.returncode == 1
    assert "no rate meets it: at 4/s p95 TTFT is 0.0" in done.stdout
    (row,) = rows_of(tmp_path, "capacity")
    assert row["metrics"]["outcome"] == "NO_RATE"
    assert row["metrics"]["capacity_per_s"] == 0.0


def test_real_runs_have_a_capacity_too(tmp_path):
    done = run_experiment(
        "capacity",
        "--config=configs/local.py",
        "--kind=measured",
        "--config.workload.num_requests=4",
        "--config.slo.ttft_s=60.0",
        "--config.slo.tpot_s=60.0",
        "--start=8",
        "--highest=8",
        f"--config.output_folder={tmp_path}",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every rate up to 8/s meets it" in done.stdout
    (row,) = rows_of(tmp_path, "capacity")
    assert (row["kind"], row["metrics"]["capacity_per_s"]) == ("measured", 8.0)
    (run,) = rows_of(tmp_path, "capacity_run")
    assert (run["kind"], run["metrics"]["num_finished"]) == ("measured", 4)


def test_arrivals_without_a_rate_and_wrong_searches_are_refused(tmp_path):
    for flags, says in (
        (["--config.workload.arrival=at_once"], "'at_once' has no rate"),
        (["--config.slo.ttft_s=-1.0"], "slo.ttft_s=-1.0 must be > 0"),
        (["--start=8", "--highest=4"], "rates must be 0 < lowest <= start <= highest"),
        (["--seeds=a"], "must be numbers"),
    ):
        done = search(tmp_path, *flags)
        assert done.returncode == 2, done.stdout
        assert says in done.stderr
        assert "Traceback" not in done.stderr

"""A sweep as a user runs it, and one cell of each ablation that ships."""

import importlib
import json
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from paxkv.sweeps.cells import run_cell
from paxkv.sweeps.grid import SweepConfig, flat, make_cells
from paxkv.sweeps.running import job_of
from tests.experiments.running import ROOT, run_experiment

ABLATIONS = sorted(path.stem for path in (ROOT / "configs/ablations").glob("*.py"))
SMALL = (
    "--config=configs/ablations/block_size.py",
    "--config.sweep.seeds=(0,)",
    "--config.workload.num_requests=6",
    "--workers=2",
)
SIZES = "--config.sweep.grid.cache.block_size=(16, 64, 256)"


def rows_in(folder: Path) -> list[dict]:
    path = folder / "rows.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def key_of(row) -> tuple:
    return row["cell"]["cache.block_size"], row["seed"], row["profile"], row["status"]


@pytest.fixture(scope="module")
def resumed(tmp_path_factory) -> tuple[str, list[dict], Path]:
    """Output of a sweep that was killed with kill -9 before, its rows and its folder."""
    folder = tmp_path_factory.mktemp("sweep")
    flags = [*SMALL, SIZES, f"--config.output_folder={folder}"]
    killed = subprocess.Popen(
        [sys.executable, "-m", "experiments.sweep", *flags, "--workers=1"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    end_s = time.monotonic() + 60
    while not rows_in_part(folder) and killed.poll() is None and time.monotonic() < end_s:
        time.sleep(0.02)
    killed.kill()
    assert killed.wait() == -9, "it had come to its end"
    done = run_experiment("sweep", *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, rows_in(folder), folder


def rows_in_part(folder: Path) -> bool:
    path = folder / "rows.jsonl"
    return path.exists() and path.stat().st_size > 0


def test_a_killed_sweep_goes_on_where_it_was(resumed):
    output, rows, folder = resumed
    expected = Counter(
        (size, 0, profile, "done")
        for size in (16, 64, 256)
        for profile in ("ideal", "calibrated")
    )
    assert Counter(map(key_of, rows)) == expected
    assert re.search(r"[01] of 3 cells have run before|^3 of 3", output)
    assert f"3 of 3 cells are done: {folder / 'rows.jsonl'}" in output


def test_rows_say_how_to_repeat_them(resumed):
    _, rows, folder = resumed
    for row in rows:
        size = row["cell"]["cache.block_size"]
        assert row["schema"] == 1
        assert row["kind"] == "simulated"
        assert row["name"] == f"block_size={size}"
        assert row["config"]["cache"]["block_size"] == size
        assert row["config"]["workload"]["num_requests"] == 6
        assert row["metrics"]["num_finished"] == 6
        assert row["device"] == "1 x a100_40"
        assert {"git", "versions", "time_utc", "cell_wall_s"} <= set(row)
        assert "--config=configs/ablations/block_size.py" in row["command"]
        assert (folder / "cells" / row["cell_id"] / "requests.jsonl").exists()


def test_a_sweep_that_is_done_has_nothing_to_do(resumed):
    _, _, folder = resumed
    before = (folder / "rows.jsonl").read_bytes()
    flags = [*SMALL, SIZES, f"--config.output_folder={folder}"]
    done = run_experiment("sweep", *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 of 3 cells have run before." in done.stdout
    assert (folder / "rows.jsonl").read_bytes() == before


def test_a_dry_run_lists_cells_and_their_commands(resumed, tmp_path):
    _, rows, folder = resumed
    more = SIZES.replace("(16", "(8, 16")
    listed = run_experiment(
        "sweep", *SMALL, more, f"--config.output_folder={folder}", "--dry_run"
    )
    assert listed.returncode == 0, listed.stderr
    assert len(re.findall(r"^\w{12}  done ", listed.stdout, re.M)) == 3
    assert re.search(r"^\w{12}  to run  seed 0  block_size=8$", listed.stdout, re.M)
    assert "4 cells of configs/ablations/block_size.py, 1 to run." in listed.stdout
    assert rows_in(folder) == rows

    fresh = tmp_path / "fresh"
    flags = [*SMALL, SIZES, f"--config.output_folder={fresh}", "--dry_run"]
    assert "3 to run" in run_experiment("sweep", *flags).stdout
    assert not fresh.exists()


def test_a_cell_that_cannot_run_is_told_and_the_rest_runs(tmp_path):
    done = run_experiment(
        "sweep",
        *SMALL,
        "--config.sweep.grid.cache.block_size=(0, 16)",
        f"--config.output_folder={tmp_path}",
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 of 2 cells are done" in done.stdout
    assert "FAILED: block_size=0, seed 0" in done.stdout
    rows = {row["cell"]["cache.block_size"]: row for row in rows_in(tmp_path)}
    assert rows[16]["status"] == "done"
    assert rows[0]["status"] == "failed"
    assert "block_size=0 must be >= 1" in rows[0]["error"]
    assert rows[0]["config"]["cache"]["block_size"] == 0
    assert {"git", "versions", "time_utc", "cell_id"} <= set(rows[0])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--config=configs/serve.py"], "configs/serve.py has no hardware, measure"),
        (["--config.sweep.grid.cache.blocks=(1,)"], "is no key of"),
        (["--config.cache.block_size=32"], "cache.block_size is varied by the sweep"),
        (["--config.sweep.seeds=('a',)"], "sweep.seeds='a' is no integer"),
        (["--config.output_folder="], "output_folder is empty"),
        (["--address=auto"], "needs --executor=ray"),
    ],
)
def test_what_cannot_be_run_is_refused(flags, message):
    done = run_experiment("sweep", *flags, "--dry_run")
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_every_ablation_has_been_listed():
    """The names of the issue; a new file gets its test by being there."""
    assert set(ABLATIONS) >= {
        "allocator", "block_size", "chunk_budget", "eviction", "kv_dtype", "preemption",
        "prefix_granularity", "router", "scheduling_policy", "watermark",
    }  # fmt: skip


@pytest.mark.parametrize("name", ABLATIONS)
def test_a_cell_of_the_ablation_runs(name, tmp_path):
    file = f"configs/ablations/{name}.py"
    config = importlib.import_module(f"configs.ablations.{name}").get_config()
    config.workload.num_requests = 4
    tree = config.to_dict()
    assert Path(tree["output_folder"]).name == name  # so no two share a folder
    sweep = SweepConfig(**tree["sweep"])
    given = {"workload.num_requests": 4}
    cells = make_cells(tree, sweep, given)
    assert len(cells) == len(sweep.seeds) * num_combinations(sweep)
    outcome = run_cell(job_of(cells[-1], config_file=file, given=given, folder=tmp_path))
    assert outcome.error is None, outcome.error
    assert {row["kind"] for row in outcome.rows} == {sweep.kind}
    assert all(row["metrics"]["num_finished"] for row in outcome.rows)


def num_combinations(sweep: SweepConfig) -> int:
    product = 1
    for values in flat(sweep.grid).values():
        product *= len(values)
    return product

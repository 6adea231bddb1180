"""However a sweep ends, the same call goes on: nothing is lost, nothing is there twice."""

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from paxkv.results import ResultsNotWritten
from paxkv.sweeps.local import run_local
from paxkv.sweeps.running import job_of
from paxkv.sweeps.table import DONE, FAILED
from tests.paxkv.sweeps.fake_sweep import (
    fake_cells,
    fake_job,
    rows_in,
    runs_in,
    sweep_once,
)
from tests.paxkv.sweeps.test_guarded import is_running, wait_until

ROOT = Path(__file__).parents[3]
SIZES = (1, 2, 4, 8, 16, 32)
GRID = {"cache.block_size": SIZES}
needs_proc = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="reads Linux's /proc"
)


def product_of(row: dict) -> tuple[int, int, int]:
    return row["cell"]["cache.block_size"], row["profile"], row["metrics"]["product"]


EXPECTED = Counter((size, index, size * index) for size in SIZES for index in range(2))


def start_sweep(folder: Path, num_workers: int, **fixed) -> subprocess.Popen:
    arguments = [str(folder), str(num_workers), repr(GRID), repr(fixed)]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.paxkv.sweeps.fake_sweep", *arguments],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        start_new_session=True,  # not to be reached by what ends the tests
    )


def test_a_job_is_what_one_would_type(tmp_path):
    cell = fake_cells(GRID, sleep_s=0.5)[1]
    job = fake_job(cell, tmp_path)
    folder = tmp_path / "cells" / cell.cell_id
    assert job.arguments == (
        "--config=configs/ablations/fake.py",
        "--config.fake.does=ends",
        "--config.fake.sleep_s=0.5",
        "--config.fake.num_rows=2",
        "--config.cache.block_size=2",
        "--config.name=block_size=2",
        f"--config.output_folder={folder}",
    )
    assert job.folder == str(folder)
    assert job.module == "tests.paxkv.sweeps.fake_cell"
    flagged = replace(cell, kind="measured", flags=("--score_keys",))
    job = job_of(flagged, config_file="c.py", given={"a.b": 1}, folder=tmp_path)
    assert job.module == "experiments.serve_trace"
    assert job.arguments[:2] == ("--config=c.py", "--config.a.b=1")
    assert job.arguments[-1] == "--score_keys"


def test_done_cells_are_skipped_and_new_ones_run(tmp_path):
    few = {"cache.block_size": SIZES[:2]}
    sweep_once(tmp_path, fake_cells(few))
    before = (tmp_path / "rows.jsonl").read_bytes()
    sweep_once(tmp_path, fake_cells(few))
    assert (tmp_path / "rows.jsonl").read_bytes() == before
    sweep_once(tmp_path, fake_cells({"cache.block_size": SIZES[1:3]}))
    assert (tmp_path / "rows.jsonl").read_bytes().startswith(before)
    assert len(runs_in(tmp_path)) == 3
    rows = rows_in(tmp_path)
    assert Counter(map(product_of, rows)) == Counter(
        (size, index, size * index) for size in SIZES[:3] for index in range(2)
    )
    assert {row["status"] for row in rows} == {DONE}


def test_failures_are_rows_and_stop_nothing(tmp_path):
    cells = fake_cells({"fake.does": ("crashes", "ends", "fails")}, seeds=(4,))
    outcomes = []
    table = sweep_once(tmp_path, cells, on_outcome=outcomes.append)
    assert [table.status(cell.cell_id) for cell in cells] == [FAILED, DONE, FAILED]
    assert len(outcomes) == 3
    failed = {
        row["cell"]["fake.does"]: row
        for row in rows_in(tmp_path)
        if row["status"] == FAILED
    }
    assert set(failed) == {"crashes", "fails"}
    assert "signal 9" in failed["crashes"]["error"]
    assert "FAILED: as it was told." in failed["fails"]["error"]
    assert failed["fails"]["experiment"] == "sweep"
    assert failed["fails"]["seed"] == 4
    assert failed["fails"]["config"]["fake"]["does"] == "fails"

    sweep_once(tmp_path, cells, retry_failed=False)
    assert len(runs_in(tmp_path)) == 3
    sweep_once(tmp_path, cells)
    assert len(runs_in(tmp_path)) == 5
    by_status = Counter(row["status"] for row in rows_in(tmp_path))
    assert by_status == {DONE: 2, FAILED: 4}


@needs_proc
def test_a_sweep_killed_at_any_moment_loses_and_doubles_nothing(tmp_path):
    chance = random.Random(0)
    num_killed = 0
    while num_killed < 60:
        process = start_sweep(tmp_path, 2, sleep_s=0.05)
        # by its progress, so that a busy machine needs no more kills than an idle one
        wanted = len(runs_in(tmp_path)) + chance.randint(1, 3)
        while process.poll() is None and len(runs_in(tmp_path)) < wanted:
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.12))
        ended = process.poll()
        process.kill()
        _, error = process.communicate()
        assert wait_until(lambda: not any(is_running(p) for _, p in runs_in(tmp_path)))
        if ended is not None:
            assert ended == 0, error.decode()
            break
        num_killed += 1
    assert 0 < num_killed < 60, "it was never killed, or never came to its end"
    assert Counter(map(product_of, rows_in(tmp_path))) == EXPECTED
    starts = Counter(cell for cell, _ in runs_in(tmp_path))
    assert len(starts) == len(SIZES)
    # done cells are not run again: each kill costs the cells that ran then
    assert starts.total() <= len(SIZES) + num_killed * 2


@needs_proc
def test_a_killed_cell_harms_only_itself(tmp_path):
    killed = []

    def kill_one(outcome):
        """Kills the other one of two that run at once, once."""
        running = [pid for _, pid in runs_in(tmp_path) if is_running(pid)]
        if running and not killed:
            os.kill(running[0], signal.SIGKILL)
            killed.extend(cell for cell, pid in runs_in(tmp_path) if pid == running[0])

    cells = fake_cells(GRID, sleep_s=0.1)
    table = sweep_once(
        tmp_path, cells, execute=partial(_staggered, tmp_path), on_outcome=kill_one
    )
    assert len(killed) == 1
    assert [c.cell_id for c in cells if table.status(c.cell_id) == FAILED] == killed
    assert "signal 9" in table.failures[killed[0]]
    sweep_once(tmp_path, cells)
    rows = [row for row in rows_in(tmp_path) if row["status"] == DONE]
    assert Counter(map(product_of, rows)) == EXPECTED


def _staggered(folder, jobs):
    """Two at once, where the second starts when the first has."""
    outcomes = run_local(jobs, 2)
    for outcome in outcomes:
        wait_until(lambda: any(is_running(pid) for _, pid in runs_in(folder)), 0.2)
        yield outcome


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_ends_its_cells(tmp_path, number):
    process = start_sweep(tmp_path, 2, does="hangs")
    pids = lambda: [f for f in tmp_path.glob("cells/*/pids") if f.read_text()]  # noqa: E731
    assert wait_until(lambda: len(pids()) == 2)
    running = [int(pid) for file in pids() for pid in file.read_text().split()]
    assert len(running) == 4
    assert all(map(is_running, running))
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode != 0
    assert wait_until(lambda: not any(map(is_running, running)))
    assert rows_in(tmp_path) == []
    sweep_once(tmp_path, fake_cells(GRID))
    assert Counter(map(product_of, rows_in(tmp_path))) == EXPECTED


def test_a_full_disk_ends_the_sweep_and_keeps_what_is_done(tmp_path, monkeypatch):
    cells = fake_cells(GRID, sleep_s=0.05)
    sync, synced = os.fsync, []

    def full_from_sixth_call(descriptor):
        synced.append(descriptor)
        if len(synced) > 5:  # one for the marker, two for each cell
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full_from_sixth_call)
    with pytest.raises(ResultsNotWritten, match="disk is full. Free some space"):
        sweep_once(tmp_path, cells)
    monkeypatch.undo()
    if Path("/proc/self/stat").exists():
        assert not any(is_running(pid) for _, pid in runs_in(tmp_path))
    before = rows_in(tmp_path)
    assert len(before) == 4
    sweep_once(tmp_path, cells)
    assert rows_in(tmp_path)[:4] == before
    assert Counter(map(product_of, rows_in(tmp_path))) == EXPECTED

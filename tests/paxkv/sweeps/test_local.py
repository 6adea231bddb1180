"""Cells of this machine: so many at once, and none left behind."""

import time
from pathlib import Path

import pytest

from paxkv.sweeps.local import run_local
from tests.paxkv.sweeps.fake_sweep import fake_cells, fake_job, runs_in
from tests.paxkv.sweeps.test_guarded import is_running, wait_until


def jobs_that(folder: Path, count: int, **fixed):
    cells = fake_cells({}, seeds=tuple(range(count)), **fixed)
    return [fake_job(cell, folder) for cell in cells]


def test_one_at_a_time_they_come_in_order(tmp_path):
    jobs = jobs_that(tmp_path, 3)
    outcomes = list(run_local(jobs, 1))
    assert [one.cell_id for one in outcomes] == [job.cell_id for job in jobs]
    assert [cell for cell, _ in runs_in(tmp_path)] == [job.cell_id for job in jobs]
    assert all(one.error is None for one in outcomes)


def test_two_run_at_once_and_a_third_waits(tmp_path):
    jobs = jobs_that(tmp_path, 3, sleep_s=0.1)
    outcomes = run_local(jobs, 2)
    first = next(outcomes)
    assert wait_until(lambda: len(runs_in(tmp_path)) == 2)  # as the generator stands still
    assert {first.cell_id, *(one.cell_id for one in outcomes)} == {
        job.cell_id for job in jobs
    }
    assert len(runs_in(tmp_path)) == 3


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads Linux's /proc")
def test_closing_ends_those_that_run(tmp_path):
    quick = jobs_that(tmp_path, 1)
    outcomes = run_local([*jobs_that(tmp_path, 2, does="hangs"), *quick], 3)
    assert next(outcomes).cell_id == quick[0].cell_id
    assert wait_until(lambda: len(runs_in(tmp_path)) == 3)
    hanging = [pid for cell, pid in runs_in(tmp_path) if cell != quick[0].cell_id]
    assert all(map(is_running, hanging))
    started_s = time.monotonic()
    outcomes.close()
    assert not any(map(is_running, hanging))
    assert time.monotonic() - started_s < 5

"""A cell's process gives rows, or the reason why it gave none."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from paxkv.results import ResultsNotWritten
from paxkv.sweeps.cells import end, run_cell, start
from tests.paxkv.sweeps.fake_sweep import fake_cells, fake_job, runs_in
from tests.paxkv.sweeps.test_guarded import is_running, wait_until


def job_that(folder: Path, **fixed):
    (cell,) = fake_cells({}, **fixed)
    return fake_job(cell, folder)


def test_a_cell_gives_its_rows(tmp_path):
    job = job_that(tmp_path)
    stale = Path(job.folder) / "rows.jsonl"
    stale.parent.mkdir(parents=True)
    stale.write_text('{"of": "a run that was killed"}\n')
    outcome = run_cell(job)
    assert outcome.error is None
    assert outcome.cell_id == job.cell_id
    assert [row["profile"] for row in outcome.rows] == [0, 1]
    assert [row["metrics"]["product"] for row in outcome.rows] == [0, 16]
    assert outcome.wall_s > 0


@pytest.mark.parametrize(
    ("fixed", "error"),
    [
        ({"does": "fails"}, "exit code 1: FAILED: as it was told.\nstdin has ''"),
        ({"does": "crashes"}, "ended by signal 9 (Killed): it said nothing"),
    ],
)
def test_an_error_says_what_the_cell_said(tmp_path, fixed, error):
    outcome = run_cell(job_that(tmp_path, **fixed))
    assert outcome.error == error
    assert outcome.rows == ()


def test_a_traceback_is_kept(tmp_path):
    job = job_that(tmp_path)
    outcome = run_cell(replace(job, arguments=(*job.arguments, "--config.fake.sleep_s=x")))
    assert outcome.error is not None
    assert outcome.error.startswith("exit code 1: Traceback")
    assert outcome.error.endswith("could not convert string to float: 'x'")


def test_of_a_long_text_the_end_is_kept_without_progress_bars(tmp_path):
    job = job_that(tmp_path, does="babbles")
    outcome = run_cell(job)
    assert outcome.error is not None
    assert outcome.error.endswith("100%\nthe end")
    assert "50%" not in outcome.error
    assert len(outcome.error) == len("exit code 1: ") + 2000


def test_a_trial_that_rejects_requests_is_a_result(tmp_path):
    """Where the pool is full, and the policy says so; its rows tell how many."""
    outcome = run_cell(job_that(tmp_path, does="rejects"))
    assert outcome.error is None
    assert [row["metrics"]["num_rejected"] for row in outcome.rows] == [3, 3]


@pytest.mark.parametrize(
    "fixed", [{"does": "fails late"}, {"does": "rejects", "num_rows": 1}]
)
def test_rows_of_a_trial_that_failed_otherwise_are_none(tmp_path, fixed):
    outcome = run_cell(job_that(tmp_path, **fixed))
    assert outcome.error == "exit code 1: it said nothing"
    assert outcome.rows == ()


def test_a_cell_without_rows_has_failed(tmp_path):
    outcome = run_cell(job_that(tmp_path, num_rows=0))
    assert outcome.error is not None
    assert "ended well and wrote no row" in outcome.error


def test_a_cell_that_ran_another_config_has_failed(tmp_path):
    outcome = run_cell(job_that(tmp_path, does="edited"))
    assert outcome.error is not None
    assert "ran with cache.block_size=99, the sweep has 16" in outcome.error


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads Linux's /proc")
def test_end_takes_the_cells_own_children_along(tmp_path):
    running = start(job_that(tmp_path, does="hangs"))
    pids = Path(running.job.folder) / "pids"
    assert wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    both = [int(pid) for pid in pids.read_text().split()]
    assert all(map(is_running, both))
    end(running)
    assert wait_until(lambda: not any(map(is_running, both)))
    assert runs_in(tmp_path) == [(running.job.cell_id, both[0])]
    end(running)  # again is no error


def test_no_room_for_a_cell_is_no_failure_of_the_cell(tmp_path, monkeypatch):
    def full(self, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(ResultsNotWritten, match="the disk is full"):
        start(job_that(tmp_path))

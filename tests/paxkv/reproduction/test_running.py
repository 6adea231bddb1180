import json

import pytest

from configs.paper.setup import opt_13b
from paxkv.reproduction.jobs import jobs_of
from paxkv.reproduction.running import errors, missing, read_rows, run_jobs
from paxkv.results import cut_torn_line
from tests.paxkv.reproduction.figures import make_figure


def small_figure():
    """A trial of two requests that runs, and one whose pool is too small for its config."""
    trial = opt_13b("alpaca")
    trial["workload"]["num_requests"] = 2
    return make_figure(
        trial=trial,
        grid={"cache.num_blocks": (200, -1)},
        checks=(),
        planted=(),
        seeds=(0,),
    )


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    jobs, told = jobs_of(small_figure()), []
    run_jobs(jobs, path, processes=2, experiment="x", command="y", on_row=told.append)
    return path, jobs, told


def test_an_error_ends_its_own_run_only(ran):
    path, jobs, told = ran
    good, bad = (read_rows(path)[job.key] for job in jobs)
    assert good["metrics"]["num_finished"] == 2
    assert (good["kind"], good["device"], good["error"]) == ("simulated", "host", None)
    assert "num_blocks=-1" in bad["error"]
    assert bad["metrics"] is None
    assert good["experiment"] == "x"
    (line,) = errors(jobs, read_rows(path))
    assert "'cache.num_blocks': -1" in line
    assert missing([*jobs, *jobs], read_rows(path)) == [jobs[1]]
    assert {row["key"] for row in told} == {job.key for job in jobs}


def test_a_torn_line_is_cut_and_a_wrong_one_named(ran, tmp_path):
    path = tmp_path / "rows.jsonl"
    whole = ran[0].read_bytes()
    path.write_bytes(whole + b'{"key": "ab')
    assert len(read_rows(path)) == 2
    cut_torn_line(path)
    assert path.read_bytes() == whole
    path.write_bytes(whole + b'{"keys": 1}\n')
    with pytest.raises(ValueError, match="line 3 of"):
        read_rows(path)


def test_the_last_row_of_a_key_counts(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"key": "a", "metrics": None}, {"key": "a", "metrics": {"x": 1}}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_rows(path)["a"] == rows[1]
    assert read_rows(tmp_path / "none") == {}

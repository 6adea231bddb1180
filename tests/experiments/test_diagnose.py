"""A simulated run is diagnosed as a user does it, and its knob is confirmed."""

import pytest

from tests.experiments.running import run_experiment


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("host")
    done = run_experiment(
        "simulate_trace",
        "--config=configs/planted/host.py",
        f"--config.output_folder={folder}",
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_cause_the_knob_and_what_is_unknown(results):
    done = run_experiment("diagnose", str(results), "--verify")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "planted_host (simulated, calibrated): 64 requests served" in done.stdout
    assert "TPOT p95 40 ms: host, 83 % of it." in done.stdout
    flag = "--config.scheduler.max_num_seqs=32"
    assert f"Knob: lower scheduler.max_num_seqs ({flag})." in done.stdout
    assert "What this cannot know:\n- Times are those of the cost model" in done.stdout
    assert "Confirmed: scheduler.max_num_seqs helps most" in done.stdout
    assert "FAILED" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "RESULT is missing"),
        (["{folder}/none"], "has no rows of simulate_trace"),
        (["{folder}", "--profile=ideal"], "use one of ['calibrated']"),
        (["{folder}", "--percent=12"], "12"),
    ],
)
def test_what_cannot_be_diagnosed_is_told_in_one_line(results, arguments, says):
    done = run_experiment("diagnose", *(a.format(folder=results) for a in arguments))
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr

"""A calibration as a user makes one, with a small grid; no bound on its error here."""

import json

import numpy as np

from paxkv.simulation.measured_model import load_calibration
from paxkv.simulation.step_records import write_steps
from tests.experiments.running import run_experiment
from tests.paxkv.simulation.test_calibration import some_works, timed

SMALL = (
    "--config.rounds=2",
    "--config.fit.block_sizes=(32,)",
    "--config.fit.batches=(1, 12)",
    "--config.fit.contexts=(30, 120)",
    "--config.held_out.block_sizes=(16,)",
    "--config.held_out.batches=(6,)",
    "--config.held_out.contexts=(60,)",
    "--config.moves.batches=(4,)",
    "--config.moves.contexts=(100,)",
    "--config.cache.pool_positions=4096",
    "--config.scheduler.max_num_seqs=16",
    "--config.scheduler.max_num_batched_tokens=64",
)


def test_measures_fits_and_writes(tmp_path):
    done = run_experiment("calibrate", *SMALL, f"--config.output_folder={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    fitted = load_calibration(tmp_path / "calibration.json")
    assert {*fitted.errors} == {"fit", "block sizes", "contexts", "batches", "all three"}
    assert fitted.unseen == ("loaded_blocks",)
    assert fitted.device_s["decode_program"] + fitted.device_s["decode_padded_seqs"] > 0
    assert (fitted.max_num_seqs, fitted.max_num_batched_tokens) == (16, 64)
    assert fitted.facts["versions"]["jax"]
    (row,) = [
        json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()
    ]
    assert row["experiment"] == "calibrate" and row["kind"] == "measured"
    assert row["errors"]["all three"]["mape"] == fitted.errors["all three"].mape
    for words in ("MAPE", "all three", "No step of the fit had loaded_blocks"):
        assert words in done.stdout


def test_fits_recorded_steps(tmp_path):
    works = some_works(np.random.default_rng(0), 90)
    path = tmp_path / "steps.jsonl"
    write_steps(path, [timed(work) for work in works])
    out = f"--config.output_folder={tmp_path / 'out'}"
    done = run_experiment("calibrate", f"--steps={path}", out)
    assert done.returncode == 0, done.stdout + done.stderr
    fitted = load_calibration(tmp_path / "out" / "calibration.json")
    assert fitted.errors["fit"].num_steps == 60
    assert fitted.errors["last third"].num_steps == 30
    assert fitted.errors["last third"].mape < 0.01


def test_what_cannot_be_fitted_is_refused(tmp_path):
    path = tmp_path / "steps.jsonl"
    write_steps(path, [timed(work) for work in some_works(np.random.default_rng(0), 5)])
    for flags, says in (
        ([f"--steps={path}"], "3 steps are too few"),
        ([f"--held_out_steps={path}"], "--held_out_steps needs --steps"),
    ):
        done = run_experiment("calibrate", f"--config.output_folder={tmp_path}", *flags)
        assert done.returncode == 2, done.stdout + done.stderr
        assert says in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr

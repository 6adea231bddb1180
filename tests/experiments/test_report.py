"""Rows become tables, a page and figures; what is wrong is said in one line."""

import pytest

from tests.experiments.running import run_experiment
from tests.report_rows import trial_row, write_rows


def test_a_report_of_several_files(tmp_path):
    rows = [
        trial_row(name="a", seed=seed, config={"cache.block_size": size})
        for size in (8, 16)
        for seed in (0, 1, 2)
    ]
    write_rows(tmp_path / "one" / "rows.jsonl", *rows)
    other = write_rows(tmp_path / "two.jsonl", trial_row(kind="measured", device="cpu"))
    out = tmp_path / "new" / "report"
    done = run_experiment("report", str(tmp_path / "one"), str(other), f"--out={out}")
    assert done.returncode == 0, done.stderr
    assert "simulated on 1 x a100_40, calibrated profile" in done.stdout
    assert "measured on cpu" in done.stdout and "Effect on useful serving" in done.stdout
    assert (out / "report.html").is_file()
    assert "No figures" in done.stdout or (out / "1_block_size.svg").is_file()


def test_bad_lines_are_named_and_fail(tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", trial_row(), extra='{"schema": 1')
    done = run_experiment("report", str(path))
    assert done.returncode == 1
    assert f"{path}:2 is no JSON" in " ".join(done.stdout.split())
    assert "FAILED: 1 lines are no rows" in done.stdout.splitlines()[-1]
    assert (tmp_path / "report" / "report.html").is_file()


def test_comparison_of_two_runs(tmp_path):
    rows = [trial_row(name="a"), trial_row(name="b", ttft_p95_s=3.0)]
    path = write_rows(tmp_path / "rows.jsonl", *rows)
    done = run_experiment("report", "--compare", str(path))
    assert done.returncode == 0, done.stderr
    assert "Changed most: TTFT p95 3.00 times." in done.stdout


@pytest.mark.parametrize(
    ("extra", "flags", "message"),
    [
        ("", ["nowhere"], "nowhere is neither a file nor a folder"),
        ("", [], "RESULTS is missing"),
        ("", ["rows.jsonl"], "hold no rows"),
        ('{"schema": 7}\n', ["rows.jsonl"], "of schema 7, this version reads schema 1"),
    ],
)
def test_what_cannot_be_reported(tmp_path, extra, flags, message):
    write_rows(tmp_path / "rows.jsonl", extra=extra)
    done = run_experiment("report", *(str(tmp_path / flag) for flag in flags))
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert message in done.stderr.splitlines()[-1]

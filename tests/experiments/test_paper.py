from tests.experiments.running import run_experiment


def test_a_figure_is_judged_and_has_a_page(tmp_path):
    ran = run_experiment("paper", "--figure=table1", f"--out={tmp_path}", "--quick")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "R1, table1" in ran.stdout
    assert "PASS" in ran.stdout
    assert f"The page is {tmp_path / 'paper.md'}" in ran.stdout
    num_rows = len((tmp_path / "rows.jsonl").read_text().splitlines())
    again = run_experiment("paper", "--figure=table1", f"--out={tmp_path}", "--quick")
    assert again.returncode == 0
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == num_rows


def test_what_is_asked_for_must_be_there():
    ran = run_experiment("paper", "--figure=2,nosuch")
    assert ran.returncode == 2
    assert "--figure=nosuch is not offered; use all, or some of" in ran.stderr
    ran = run_experiment("paper", "--quick", "--long")
    assert ran.returncode == 2
    assert "choose one" in ran.stderr

"""The classic comparison runs, and its rows can be reported again."""

import json

from paxkv.analysis.reports.loading import load_rows
from paxkv.analysis.reports.sections import report_sections
from paxkv.analysis.reports.text import report_text
from tests.experiments.running import run_experiment

SMALL = (
    "--config.workload.num_requests=20",
    "--config.profiles=('calibrated',)",
    "--config.sweep.seeds=(0,)",
    "--config.sweep.grid.allocator=('contiguous_max','contiguous_grow','paged')",
    "--config.sweep.grid.workload=('full_context',)",
    "--config.sweep.choices.workload.full_context.workload.num_requests=12",
)


def test_every_cache_has_a_row_and_every_claim_a_verdict(tmp_path):
    done = run_experiment("compare_caches", f"--config.output_folder={tmp_path}", *SMALL)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    names = [row["cell"]["allocator"] for row in rows]
    assert names == ["contiguous_max", "contiguous_grow", "paged"]
    metrics = {name: row["metrics"] for name, row in zip(names, rows, strict=True)}
    assert {m["num_finished"] for m in metrics.values()} == {12}
    assert {m["num_output_tokens"] for m in metrics.values()} == {12 * 64}
    paged = metrics["paged"]
    # each request decodes 63 times, at contexts 1,985 .. 2,047, in blocks of 16
    assert paged["decode_context_tokens"] == 12 * sum(range(1985, 2048))
    assert paged["decode_read_tokens"] == 12 * sum(
        -(-c // 16) * 16 for c in range(1985, 2048)
    )
    assert (
        "contiguous wastes 60-80 %" in done.stdout and "paged wastes < 5 %" in done.stdout
    )
    assert (tmp_path / "report.html").is_file()
    again = report_text(report_sections(load_rows([tmp_path])))
    assert again in done.stdout


def test_an_unknown_workload_is_refused(tmp_path):
    done = run_experiment(
        "compare_caches",
        f"--config.output_folder={tmp_path}",
        "--config.sweep.grid.allocator=('contiguous_max','contiguous_grow','paged')",
        "--config.sweep.grid.workload=('none',)",
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "has 'none', which sweep.choices.workload lacks" in done.stderr

"""Sections never mix kinds, devices or profiles, and nothing of the files is lost."""

from paxkv.analysis.reports.loading import load_rows
from paxkv.analysis.reports.sections import content_of, report_sections
from paxkv.analysis.reports.text import report_text
from tests.report_rows import trial_row, write_rows

ATTENTION = {
    "schema": 1,
    "experiment": "bench_attention",
    "kind": "measured",
    "device": "cpu",
    "problem": {
        "batch": 1,
        "context": 64,
        "block_size": 16,
        "dtype": "float32",
        "is_prefill": False,
    },
    "median_ms": {"cpu": 1.0},
}
REPLAY = {
    "schema": 1,
    "experiment": "replay_prefixes",
    "kind": "simulated",
    "device": "none",
    "trace": "t.jsonl",
    "policy": "lru",
    "num_blocks": 10,
    "num_lookups": 100,
    "num_hits": 20,
    "hit_rate_percent": 20.0,
}


def sections_of(tmp_path, *rows, extra=""):
    return report_sections(
        load_rows([write_rows(tmp_path / "rows.jsonl", *rows, extra=extra)])
    )


def test_places_are_apart(tmp_path):
    rows = [
        trial_row(profile="ideal"),
        trial_row(profile="calibrated"),
        trial_row(profile="calibrated", device="1 x h100"),
        trial_row(kind="measured", profile="measured", device="cpu"),
    ]
    sections = sections_of(tmp_path, *rows)
    assert [section.title for section in sections] == [
        "simulated on 1 x a100_40, ideal profile",
        "simulated on 1 x a100_40, calibrated profile",
        "simulated on 1 x h100, calibrated profile",
        "measured on cpu",
    ]
    names = [figure.name for section in sections for figure in section.figures]
    assert len(set(names)) == len(names)
    for section in sections:
        assert len(section.closing) == 3
        assert all(figure.caption == section.title for figure in section.figures)
        assert "no interval" in section.notes[0]


def test_seeds_and_repeated_rows_are_told(tmp_path):
    rows = [trial_row(seed=0), trial_row(seed=1), trial_row(seed=1, running_mean=9.0)]
    [section] = sections_of(tmp_path, *rows)
    assert "Student's t" in section.notes[0]
    assert section.notes[1].startswith("1 earlier rows are left out")


def test_capacity_rows(tmp_path):
    slo = {"ttft_s": 2.0, "tpot_s": 0.1, "percentile": 95.0}
    rows = [
        {
            "schema": 1,
            "experiment": "capacity",
            "kind": "simulated",
            "device": "1 x h100",
            "name": name,
            "seed": seed,
            "config": {"slo": slo, "workload": {"arrival": "poisson", "structure": "rag"}},
            "metrics": {"capacity_per_s": rate + seed},
        }
        for name, rate in (("a", 1.0), ("b", 2.0))
        for seed in (0, 1)
    ]
    [section] = sections_of(tmp_path, *rows)
    [table] = section.tables
    assert table.lines[0] == (
        "a",
        "2",
        "1.50 ±6.35",
        "TTFT ≤ 2 s and TPOT ≤ 0.1 s for 95 % of requests",
    )
    assert [figure.name for figure in section.figures] == ["capacity"]
    assert "largest rate that met" in section.closing[2]


def test_each_row_has_its_content(tmp_path):
    other = {"schema": 1, "experiment": "parity", "kind": "measured", "device": "cpu"}
    assert content_of(trial_row()) == "trials" and content_of(REPLAY) == "replays"
    assert content_of(trial_row() | {"experiment": "compare_caches"}) == "classic"
    measured = ATTENTION | {"experiment": "compare_caches"}
    assert content_of(measured) == "attention"
    assert content_of(ATTENTION) == "attention" and content_of(other) == "others"
    measured, replays = sections_of(tmp_path, ATTENTION, other, REPLAY)
    assert measured.notes == ("1 rows have no section here: of parity.",)
    assert measured.tables[0].title.startswith("Attention time")
    assert replays.tables[0].lines[0] == ("lru", "10", "100", "20", "20.00")
    assert not measured.closing


def test_failures_come_last(tmp_path):
    failed = {"schema": 1, "status": "failed", "name": "x", "error": "ValueError: no"}
    [section] = sections_of(tmp_path, failed, extra="{\n")
    assert section.title == "What went wrong"
    assert section.notes[0] == "Failed run: x, seed -: ValueError: no"
    assert "rows.jsonl:2 is no JSON" in section.notes[1]


def test_the_text_fits(tmp_path):
    rows = [
        trial_row(name="a name that is long " * 4, seed=seed, profile=profile)
        for seed in range(3)
        for profile in ("ideal", "calibrated")
    ]
    text = report_text(sections_of(tmp_path, *rows, extra="nonsense\n"))
    assert "Memory saved: " in text and "What went wrong" in text
    longest = [line for line in text.splitlines() if "rows.jsonl" not in line]
    assert max(len(line) for line in longest) <= 100

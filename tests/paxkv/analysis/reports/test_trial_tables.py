"""A line for each setting; columns without a number are left out."""

from paxkv.analysis.reports.settings import points_of
from paxkv.analysis.reports.trial_tables import trial_tables
from tests.report_rows import trial_row


def test_means_intervals_and_n():
    rows = [
        trial_row(
            seed=seed,
            config={"cache.block_size": size},
            throughput_tokens_per_s=100.0 * size + seed,
        )
        for size in (8, 16)
        for seed in (0, 2)
    ]
    tables = {table.title: table for table in trial_tables(points_of(rows)[0])}
    service = tables["Service"]
    assert service.head[:2] == ("block size", "n")
    assert "goodput, req/s" not in service.head  # no row has one
    line = dict(zip(service.head, service.lines[0], strict=True))
    assert (line["block size"], line["n"]) == ("8", "2")
    assert line["tokens/s"] == "801 ±13"  # deviation sqrt(2), t(1) = 12.706
    assert "tail, %" in tables["Memory, while requests wait"].head


def test_no_points_no_tables():
    assert trial_tables([]) == []

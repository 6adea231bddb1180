"""The comparison of caches: each number of a row, each claim under each workload."""

import pytest

from paxkv.analysis.reports.charts import BarChart
from paxkv.analysis.reports.claims import THROUGHPUT, WASTE_PAGED, verdict
from paxkv.analysis.reports.classic import classic_sections, read_tokens
from paxkv.analysis.reports.counted import read_overhead_percent, waste_percent
from paxkv.analysis.reports.estimates import estimate
from tests.report_rows import trial_row


def row(workload, allocator, seed=0, **more):
    return trial_row(
        seed=seed,
        cell={"workload": workload, "allocator": allocator},
        config={"cache.allocator": allocator},
        **more,
    ) | {"experiment": "compare_caches"}


def contiguous(workload, used, tokens_per_s, seed=0):
    return row(
        workload,
        "contiguous_max",
        seed,
        capacity=4.0,
        shares={"token_states": used, "tail": 0.0, "free": 0.0, "internal": 100.0 - used},
        throughput_tokens_per_s=tokens_per_s,
    )


def rows():
    reads = {"decode_read_tokens": 1030, "decode_context_tokens": 1000}
    for seed in (0, 1):
        yield contiguous("sharegpt", 30.0, 100.0 + seed, seed)
        yield row(
            "sharegpt",
            "paged",
            seed,
            capacity=12.0,
            shares={"token_states": 97.0, "tail": 3.0, "free": 0.0},
            throughput_tokens_per_s=300.0 + 3 * seed,
            **reads,
        )
    yield contiguous("full", 99.0, 500.0)
    yield row("full", "paged", throughput_tokens_per_s=500.0, **reads)


def test_sections_and_claims():
    sharegpt, full, claims = classic_sections("simulated on a chip", list(rows()), "1_")
    assert sharegpt.title == "sharegpt: simulated on a chip"
    [table] = sharegpt.tables
    lines = {line[0]: dict(zip(table.head, line, strict=True)) for line in table.lines}
    assert lines["contiguous max"]["wasted, %"] == "70.0 ±0.0"
    assert lines["paged"]["read beyond, %"] == "3.0 ±0.0"
    assert lines["contiguous max"]["read beyond, %"] == "-"
    assert [figure.name for figure in sharegpt.figures] == [
        "1_waste_0",
        "1_running_over_time_0",
    ]
    assert isinstance(sharegpt.figures[0].charts[0], BarChart)
    assert sharegpt.figures[0].charts[0].labels == ("contiguous max", "paged")
    assert len(sharegpt.closing) == 3 and full.closing
    found = {(line[0], line[1]): line[2:] for line in claims.tables[0].lines}
    assert found["contiguous wastes 60-80 %", "sharegpt"] == ("70.0 %", "holds")
    assert found["contiguous wastes 60-80 %", "full"] == ("1.0 %", "less than claimed")
    assert found["paged wastes < 5 %", "sharegpt"] == ("3.0 %", "holds")
    assert found["2-4 times the requests", "sharegpt"] == ("3.0 times", "holds")
    assert found["2-4 times the throughput", "full"] == ("1.0 times", "less than claimed")
    assert found["kernel 20-26 % slower", "full"] == (
        "reads 3.0 % more, not timed",
        "cannot be told",
    )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([2.0, 4.0], "holds"),
        ([1.0, 3.0], "holds in part"),
        ([1.0, 9.0], "holds in part"),
        ([1.0, 1.9], "less than claimed"),
        ([4.1], "more than claimed"),
        ([], "cannot be told"),
    ],
)
def test_verdicts(values, words):
    assert verdict(THROUGHPUT, [estimate([value]) for value in values]) == words


def test_a_workload_without_paged_tells_only_of_contiguous():
    *_, claims = classic_sections("somewhere", [contiguous("w", 30.0, 1.0)])
    assert [line[0] for line in claims.tables[0].lines] == ["contiguous wastes 60-80 %"]
    assert verdict(WASTE_PAGED, [estimate([None])]) == "cannot be told"


def test_reads_are_counted_by_hand():
    """A prompt of 3 and 4 outputs: decodes attend to 4, 5 and 6, in blocks of 4."""
    assert read_tokens(3, 4, 4) == (4 + 8 + 8, 15)
    assert read_tokens(3, 1, 4) == (0, 0)


def test_cached_blocks_are_not_wasted():
    row = trial_row(shares={"token_states": 60.0, "cached": 30.0})
    assert waste_percent(row) == 10.0
    assert waste_percent(trial_row(partition_percent={})) is None
    assert read_overhead_percent(row) is None

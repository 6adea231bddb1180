"""Ideas alone and in piles, found from the labels of a sweep's cells."""

import pytest

from paxkv.analysis.reports.counted import pool_bytes
from paxkv.analysis.reports.gains import gains_charts, gains_tables, requests_per_gb
from paxkv.analysis.reports.settings import points_of
from tests.report_rows import trial_row

LABELS = (
    "contiguous",
    "paging",
    "paging + GQA",
    "paging + int8",
    "paging + GQA + int8",
)


def row(ideas, rate, capacity, goodput):
    return trial_row(
        cell={"ideas": ideas, "workload.rate_per_s": rate},
        config={"workload.rate_per_s": rate},
        capacity=capacity,
        num_queue_steps=int(100 * rate),
        slo={"ttft_s": 1.0, "tpot_s": 0.1, "percentile": 99.0, "goodput_per_s": goodput},
    )


@pytest.fixture
def points():
    rows = [
        row(label, rate, capacity=(index + 1) * rate, goodput=(index + 1) / rate)
        for index, label in enumerate(LABELS)
        for rate in (1.0, 2.0)
    ]
    return points_of(rows)[0]


def test_alone_and_stacked(points):
    alone, stacked = gains_tables(points)
    assert [line[0] for line in alone.lines] == list(LABELS[:4])
    assert [line[0] for line in stacked.lines] == [
        "contiguous",
        "paging",
        "paging + GQA",
        "paging + GQA + int8",
    ]
    last = dict(zip(stacked.head[:4], stacked.lines[-1], strict=False))
    # capacity 10 at the rate with the longest queue; a pool of 1,024 * 1,024 bytes
    assert last["requests/GB"] == f"{10 / 1048576e-9:,.2f}"
    assert stacked.lines[-1][4] == "5.00"
    # goodput 5 at rate 1, where it is largest, of 1 for the base
    assert stacked.lines[-1][5:] == ("5.00", "5.00")


def test_two_panels_each(points):
    charts = gains_charts(points)
    memory, service = charts["gains_1"]
    assert memory.labels == ("contiguous", "paging", "+ GQA", "+ int8")
    assert service.x_label == "goodput (requests/s)"
    assert len(charts) == 2


def test_other_rows_have_none():
    assert gains_tables(points_of([trial_row()])[0]) == []
    assert gains_charts([]) == {}


def test_bytes_of_cache_groups():
    """Ten blocks of unbounded layers and four of windowed ones, the null blocks aside."""
    shape = {
        "name": "s",
        "num_layers": 6,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_heads": 2,
        "num_kv_heads": 2,
        "head_dim": 4,
        "num_parameters": 100,
        "vocab_size": 10,
        "max_context": 64,
        "window": 8,
        "num_window_layers": 5,
    }
    row = trial_row(
        config={f"model.{key}": value for key, value in shape.items()}
        | {"cache.dtype": "float32"}
    )
    row["pool"] |= {"blocks_per_group": [11, 5]}
    # K and V of 2 heads of 4 numbers of 4 bytes: 64 bytes per layer and token
    assert pool_bytes(row) == 10 * 16 * 64 + 4 * 16 * 5 * 64
    # a real run's model is its checkpoint's, not the config's shape
    assert pool_bytes(row | {"kind": "measured"}) is None
    assert pool_bytes(trial_row()) == 1024 * 1024
    assert requests_per_gb(trial_row(capacity=None)) is None

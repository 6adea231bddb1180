"""Figures are those that the rows allow, with the rows' numbers."""

import pytest

from paxkv.analysis.reports.charts import BarChart, LineChart
from paxkv.analysis.reports.settings import points_of
from paxkv.analysis.reports.trial_charts import hit_rate_of_replays, trial_charts
from tests.report_rows import trial_row

SLO = {"ttft_s": 1.0, "tpot_s": 0.1, "percentile": 99.0}


def charts_of(*rows):
    return trial_charts(points_of(rows)[0])


def grid(key, values, path):
    return [
        trial_row(name=name, config={key: value}, **{path: float(value)})
        for name in ("a", "b")
        for value in values
    ]


def test_rates():
    rows = [
        trial_row(
            name=name,
            config={"workload.rate_per_s": rate},
            normalized_latency_s=rate / 10,
            running_mean=3 * rate,
            num_preemptions=int(rate),
            slo=SLO | {"goodput_per_s": rate / 2},
        )
        for name in ("a", "b")
        for rate in (1.0, 2.0)
    ]
    charts = charts_of(*rows)
    latency, goodput = charts["latency_against_rate"]
    assert latency.has_log_y and [s.label for s in latency.series] == ["a", "b"]
    assert latency.series[0].y == (0.1, 0.2) and goodput.series[1].y == (0.5, 1.0)
    assert "(requests/s)" in latency.x_label and "(s per output token)" in latency.y_label
    against_running = charts["latency_against_running"][0]
    assert against_running.series[0].x == (3.0, 6.0)
    [preemptions] = charts["preemptions"]
    assert isinstance(preemptions, LineChart) and preemptions.series[0].y == (1.0, 2.0)
    # the waste and the timeline are those at the highest rate, of which each has one bar
    [waste] = charts["waste"]
    assert isinstance(waste, BarChart) and waste.labels == ("a", "b")
    assert waste.title.endswith("at 2 requests/s")
    assert waste.parts["token states"] == (90.0, 90.0) and waste.x_max == 100.0
    assert sum(values[0] for values in waste.parts.values()) == 100.0


def test_block_sizes():
    charts = charts_of(*grid("cache.block_size", (1, 16, 256), "normalized_latency_s"))
    assert len(charts["block_size"]) == 3
    assert charts["block_size"][0].x_base == 2
    assert charts["block_size"][0].series[0].x == (1.0, 16.0, 256.0)
    assert "latency_against_rate" not in charts


def test_hit_rate_against_capacity():
    charts = charts_of(*grid("cache.num_blocks", (100, 1000), "prefix_hit_percent"))
    [chart] = charts["hit_rate_against_capacity"]
    assert chart.x_base == 10 and chart.series[0].y == (100.0, 1000.0)


def test_admitted_requests():
    charts = charts_of(*grid("scheduler.max_num_seqs", (8, 64), "tpot_p50_s"))
    assert [c.x_label for c in charts["latency_against_running"]] == [
        "most requests admitted at once"
    ] * 2


def test_bars_of_preemptions_without_an_axis():
    charts = charts_of(
        *(trial_row(name=n, seed=s, num_preemptions=s) for n in "ab" for s in (0, 2))
    )
    [chart] = charts["preemptions"]
    assert isinstance(chart, BarChart) and chart.labels == ("a", "b")
    assert chart.half_widths == pytest.approx((12.706, 12.706))


def test_nothing_to_draw():
    row = trial_row(partition_percent={}, timeline={}, num_preemptions=0)
    assert charts_of(row) == {}


def test_replays_have_a_line_for_each_policy():
    rows = [
        {"policy": policy, "num_blocks": blocks, "hit_rate_percent": rate}
        for policy in ("lru", "belady")
        for blocks, rate in ((1000, 20.0), (10, 5.0), (None, 36.6))
    ]
    chart = hit_rate_of_replays(rows)
    assert chart is not None and chart.series[0].x == (10.0, 1000.0)
    assert chart.series[0].y == (5.0, 20.0) and chart.y_line == (36.6, "without limit")
    assert hit_rate_of_replays([]) is None

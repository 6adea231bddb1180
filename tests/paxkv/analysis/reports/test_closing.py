"""The closing sentences say what the rows say, whoever wins."""

from paxkv.analysis.reports.closing import closing_sentences
from paxkv.analysis.reports.settings import points_of
from tests.report_rows import trial_row

SLO = {"ttft_s": 1.0, "tpot_s": 0.1, "percentile": 99.0}


def sentences(*rows, capacities=()):
    return closing_sentences(points_of(rows)[0], points_of(capacities)[0])


def test_memory_tail_and_goodput():
    memory, kept, effect = sentences(
        trial_row(
            name="contiguous_max",
            held_per_request=400.0,
            shares={"tail": 0.0},
            slo=SLO | {"goodput_per_s": 1.0},
        ),
        trial_row(name="paged", slo=SLO | {"goodput_per_s": 2.5}),
    )
    assert memory == (
        "Memory saved: with a queue, a running request held 100 positions (0.1 MiB) under "
        "paged and 400 under contiguous max: 75 % less."
    )
    assert "last blocks was 0.0 to 5.0 % of the pool" in kept
    assert "block tables took 0.195 % of its bytes" in kept  # 2,048 of 1,024 * 1,024
    assert (
        "the most that these runs served within TTFT ≤ 1 s and TPOT ≤ 0.1 s was "
        "2.50 requests/s under paged, 2.50 times the 1.00 under contiguous max"
    ) in effect


def test_goodput_is_that_of_the_best_rate():
    rows = [
        trial_row(
            name=name,
            config={"workload.rate_per_s": rate},
            slo=SLO | {"goodput_per_s": goodput},
        )
        for name, rate, goodput in (
            ("a", 1.0, 1.0),
            ("a", 2.0, 0.1),
            ("b", 1.0, 1.0),
            ("b", 2.0, 2.0),
        )
    ]
    *_, effect = sentences(*rows)
    assert "2.00 times the 1.00 under a, rate per s 1" in effect


def test_searched_capacity_comes_first():
    rows = [
        trial_row(name=name, capacity_per_s=rate, slo=SLO) | {"experiment": "capacity"}
        for name, rate in (("a", 3.0), ("b", 1.5))
    ]
    *_, effect = sentences(trial_row(slo=SLO | {"goodput_per_s": 9.0}), capacities=rows)
    assert "largest rate that met" in effect
    assert "3.00 requests/s under a, 2.00 times the 1.50 under b." in effect


def test_a_traces_capacity_is_a_multiple_of_its_rate():
    row = trial_row(capacity_per_s=3.0, slo=SLO, config={"workload.arrival": "trace"})
    *_, effect = sentences(capacities=[row | {"experiment": "capacity"}])
    assert "was 3.00 times the trace's rate under run" in effect


def test_intervals_that_overlap_are_said():
    rows = [
        trial_row(name=name, seed=seed, slo=SLO | {"goodput_per_s": goodput + seed})
        for name, goodput in (("a", 2.0), ("b", 1.0))
        for seed in (0, 1)
    ]
    *_, effect = sentences(*rows)
    assert "their intervals overlap, so more seeds are needed" in effect


def test_nobody_waited_and_nothing_was_promised():
    memory, kept, effect = sentences(
        trial_row(
            held_per_request=None, partition_percent={}, table_bytes_peak=None, slo=None
        )
    )
    assert "cannot be told, for no request ever waited" in memory
    assert "cannot be told" in kept
    assert "run experiments.capacity" in effect


def test_within_two_percent_is_the_same():
    rows = [
        trial_row(name="a", held_per_request=100.0, slo=SLO | {"goodput_per_s": 1.0}),
        trial_row(name="b", held_per_request=101.0, slo=SLO | {"goodput_per_s": 1.01}),
    ]
    memory, _, effect = sentences(*rows)
    assert "as much under the other settings, within 2 %" in memory
    assert "the same under all others, within 2 %" in effect


def test_no_goodput_at_all():
    rows = [trial_row(name=name, slo=SLO | {"goodput_per_s": 0.0}) for name in "ab"]
    assert "no setting served a request within" in sentences(*rows)[2]

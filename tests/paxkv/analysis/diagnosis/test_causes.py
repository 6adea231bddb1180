"""The dominating cause of records whose causes are known, and of none."""

from dataclasses import replace

import numpy as np
import pytest

from paxkv.analysis.diagnosis.causes import SLACK, band, diagnose, first_token_split
from paxkv.analysis.request_records import CAUSES
from tests.paxkv.analysis.diagnosis.synthetic import ALONE_S, FLOOR, alike, request

WORK = {"own_prefill": 0.05, "decode": 0.01}
ACCUSED = [cause for cause in CAUSES if cause not in ("own_prefill", "decode")]


def found(records, metric, percent):
    findings = diagnose(records, FLOOR)
    (one,) = [f for f in findings if (f.metric, f.percent) == (metric, percent)]
    return one


@pytest.mark.parametrize("cause", ACCUSED)
@pytest.mark.parametrize("percent", [50, 95, 99])
def test_one_cause_is_named_in_both_metrics(cause, percent):
    records = alike(200, {**WORK, cause: 0.3}, {"decode": 0.1, cause: 0.5})
    first = found(records, "ttft", percent)
    assert first.cause == cause
    alone = min(0.3, ALONE_S) if cause == "queueing" else 0.0  # the step under way
    assert first.excess_s[cause] == pytest.approx(0.3 - alone, rel=2e-3)
    next_ = found(records, "tpot", percent)
    assert next_.cause == cause
    assert next_.excess_s[cause] == pytest.approx(0.05, rel=2e-3)
    assert next_.share(cause) == pytest.approx(0.5 / 0.6)


def test_decode_is_accused_only_of_what_a_batch_adds():
    crowded = alike(200, WORK, {"decode": 10 * ALONE_S * 3})
    assert found(crowded, "tpot", 95).cause == "decode"
    assert found(crowded, "tpot", 95).excess_s["decode"] == pytest.approx(0.02, rel=2e-3)
    alone = alike(200, WORK, {"decode": 10 * ALONE_S})
    assert found(alone, "tpot", 95).cause is None


def test_a_service_at_its_floor_is_not_accused():
    """However long its own work takes, and however it is split."""
    slow = alike(200, {"own_prefill": 30.0, "decode": 0.01, "queueing": 0.01})
    for finding in diagnose(slow, FLOOR):
        assert not finding.stands_out
        assert finding.cause is None and finding.close_second is None


def test_the_limit_of_what_stands_out_is_exact():
    for factor, stands_out in ((SLACK - 0.01, False), (SLACK + 0.01, True)):
        records = alike(100, {"own_prefill": 1.0, "swap": factor - 1.0})
        assert found(records, "ttft", 50).stands_out is stands_out


@pytest.mark.parametrize("one", ACCUSED)
def test_mixed_causes_flip_with_the_mix(one):
    other = "host" if one != "host" else "queueing"
    for share, first, second in ((0.6, one, other), (0.4, other, one)):
        records = alike(200, {**WORK, one: 5 * share, other: 5 * (1 - share)})
        assert found(records, "ttft", 95).ranked[:2] == [first, second]
        assert found(records, "ttft", 95).close_second is None  # 40 < 0.8 x 60
    even = alike(200, {**WORK, one: 1.0, other: 0.9})
    assert found(even, "ttft", 95).close_second == other


def test_the_tail_may_have_another_cause_than_the_median():
    usual = alike(180, {**WORK, "host": 0.2})
    queued = alike(20, {**WORK, "host": 0.2, "queueing": 0.9}, tenant="late")
    assert found(usual + queued, "ttft", 50).cause == "host"
    tail = found(usual + queued, "ttft", 99)
    assert tail.cause == "queueing"
    assert tail.over_median_s["queueing"] == pytest.approx(0.9, rel=2e-3)
    assert tail.over_median_s["host"] == pytest.approx(0.0, abs=1e-3)


def test_a_finding_splits_what_the_percentile_is():
    generator = np.random.default_rng(3)
    records = [
        request(i, {"queueing": float(q), "own_prefill": float(p)}, {"decode": 0.1})
        for i, (q, p) in enumerate(generator.exponential(1.0, (1000, 2)))
    ]
    values = [record.ttft_s for record in records]
    for percent in (50, 95, 99):
        finding = found(records, "ttft", percent)
        assert finding.value_s == np.percentile(values, percent)
        assert len(finding.band) == 20
        assert sum(finding.causes_s.values()) == pytest.approx(finding.value_s)
        assert sum(finding.share(cause) for cause in CAUSES) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("count", "percent", "ranks"),
    [
        (1, 99, range(0, 1)),
        (4, 50, range(0, 4)),
        (101, 50, range(48, 53)),
        (100, 99, range(95, 100)),
        (1001, 95, range(940, 961)),  # 2 % of 1001 is 21, around rank 950
    ],
)
def test_the_band_is_the_nearest_by_rank(count, percent, ranks):
    splits = [first_token_split(r, FLOOR) for r in alike(count, WORK)]
    splits.sort(key=lambda one: one.total_s)
    assert list(band(splits, percent)) == [splits[rank] for rank in ranks]


def test_requests_without_the_metric_are_left_out():
    served = alike(10, {**WORK, "queueing": 1.0})
    unserved = alike(50, {"queueing": 99.0}, reason="REJECTED_TOO_LONG")
    short = alike(50, {**WORK, "queueing": 1.0}, {}, num_output_tokens=1)
    assert found(served + unserved, "ttft", 99).num_requests == 10
    assert found(served + short, "tpot", 50).num_requests == 10
    assert {f.metric for f in diagnose(short, FLOOR)} == {"ttft"}
    assert diagnose(unserved, FLOOR) == []


def test_causes_that_do_not_sum_are_refused():
    record = request(7, WORK, {"decode": 0.1})
    longer = replace(record, first_token_s=record.first_token_s + 0.5)
    with pytest.raises(ValueError, match="request 7: its first token took 0.56 s"):
        diagnose([longer], FLOOR)
    with pytest.raises(ValueError, match="tokens after the first took 0.1 s"):
        diagnose([replace(record, decode_causes_s={})], FLOOR)
    unknown = {"own_prefill": 0.05, "magic": 0.01}
    with pytest.raises(ValueError, match="'magic'"):
        diagnose([replace(record, ttft_causes_s=unknown)], FLOOR)

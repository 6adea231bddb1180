"""What a reader is told."""

import re

from paxkv.analysis.diagnosis.advice import Evidence
from paxkv.analysis.diagnosis.causes import diagnose
from paxkv.analysis.diagnosis.floors import floor_of_records
from paxkv.analysis.diagnosis.words import seconds, split_table, unknowns, verdict
from tests.paxkv.analysis.diagnosis.synthetic import FLOOR, alike, config, metrics

WORK = {"own_prefill": 0.05, "decode": 0.01}
EVIDENCE = Evidence(config=config(), metrics=metrics(free=1.0))


def test_a_verdict_has_the_cause_the_excess_and_the_flag():
    (first, *_) = diagnose(alike(100, {**WORK, "queueing": 0.94}), FLOOR, (95,))
    assert verdict(first, EVIDENCE) == (
        "TTFT p95 1 s: queueing, 94 % of it. Of 931 ms over the unloaded 70 ms it is "
        "931 ms.\n"
        "  the pool is full of tokens (97 %; 2 % is lost in last blocks): it takes more "
        "memory, or smaller numbers in it (cache.dtype=int8). Knob: raise cache.num_blocks "
        "(--config.cache.num_blocks=2001)."
    )


def test_slos_are_told_and_a_missed_one_gets_a_knob():
    (first, *_) = diagnose(alike(100, WORK), FLOOR, (50,))
    assert "nothing stands out; such requests take 60 ms alone, and 1.00" in verdict(
        first, EVIDENCE
    )
    met = verdict(first, EVIDENCE, slo_s=0.1)
    assert met.startswith("TTFT p50 60 ms (meets the SLO of 100 ms)")
    assert "Knob" not in met
    missed = verdict(first, EVIDENCE, slo_s=0.01)
    assert missed.startswith("TTFT p50 60 ms (misses the SLO of 10 ms)")
    assert "Knob: raise hardware.num_chips (--config.hardware.num_chips=2)" in missed


def test_a_close_second_and_another_tail_are_told():
    usual = alike(90, {**WORK, "host": 1.0})
    late = alike(10, {**WORK, "host": 1.0, "swap": 0.9}, tenant="late")
    (finding,) = [f for f in diagnose(usual + late, FLOOR, (99,)) if f.metric == "ttft"]
    told = verdict(finding, EVIDENCE)
    assert "host, 51 % of it" in told
    assert "; swap is close, with 90" in told
    assert "What it has over the median is mostly swap." in told


def test_the_table_has_all_causes_and_sums():
    findings = diagnose(alike(100, {**WORK, "queueing": 0.94}), FLOOR)
    lines = split_table(findings).splitlines()
    names = "TTFT p50, TTFT p95, TTFT p99, TPOT p50, TPOT p95, TPOT p99"
    assert ", ".join(re.split(r" {2,}", lines[0])[1:]) == names
    assert lines[2].split() == ["queueing", "94.0", "94.0", "94.0", "0.0", "0.0", "0.0"]
    shares = [line.split()[-6:] for line in lines[2:10]]
    assert [
        round(sum(float(s) for s in column)) for column in zip(*shares, strict=True)
    ] == ([100] * 6)
    assert len({len(line) for line in lines}) == 1


def test_what_cannot_be_known_is_said():
    records = alike(120, WORK)
    findings = diagnose(records, FLOOR)
    simulated = unknowns("simulated", "ideal", FLOOR, findings, 0)
    assert "cost model (ideal), not of a device" in simulated[0]
    assert "p99 of 120 requests rests on a few of them" in simulated[2]
    assert not any("p95" in said for said in simulated)
    floor = floor_of_records(records, budget_tokens=512)
    measured = unknowns("measured", "", floor, findings, 3)
    assert "split into prefill, decode and the rest is an estimate" in measured[0]
    assert "in a busy run it is too high" in measured[1]
    assert any("3 requests were rejected or aborted" in said for said in measured)


def test_seconds_have_three_digits():
    shown = [seconds(s) for s in (0.0123456, 1.23456, 123.4, 12345.6, 0.0)]
    assert shown == ["12.3 ms", "1.23 s", "123 s", "12,346 s", "0 ms"]

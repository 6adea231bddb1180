"""Knobs turned on a service whose answers are written down."""

import pytest

from paxkv.analysis.diagnosis.knobs import KNOBS, MACHINES, SETTING, value_at
from paxkv.analysis.diagnosis.verify import latencies_s, turn_all, verify_table
from tests.paxkv.analysis.diagnosis.synthetic import alike, config

PERCENTILES = (50, 95)


def service(tree):
    """Its queue follows its rows and replicas; blocks of 32 tokens do not fit."""
    if value_at(tree, "cache.block_size") == 32:
        raise ValueError("blocks of 32 tokens are refused.")
    rows = value_at(tree, "scheduler.max_num_seqs")
    replicas = value_at(tree, "router.num_replicas")
    count = 100 if value_at(tree, "scheduler.admission") == "watermark" else 50
    wait_s = 64.0 / rows / replicas**2 * (count == 100)
    return alike(count, {"queueing": wait_s, "own_prefill": 1.0})


@pytest.fixture(scope="module")
def verified():
    heard = []
    done = turn_all(config(), service, PERCENTILES, heard.append)
    assert heard == ["as it is", *KNOBS]
    return done


def test_every_knob_that_can_be_turned_is(verified):
    turns = {n for n, knob in KNOBS.items() if knob.change(config()) is not None}
    assert {one.name for one in verified.turned} == turns
    assert verified.before_s["ttft", 50] == pytest.approx(2.0, rel=1e-3)
    assert verified.num_served == 100


def test_the_named_knob_must_help_most_of_those_that_cost_no_more(verified):
    assert verified.best("ttft", 95, SETTING).name == "more_rows"
    assert verified.best("ttft", 95, MACHINES).name == "more_replicas"
    assert verified.confirms("more_rows", "ttft", 95)
    assert verified.confirms("more_replicas", "ttft", 95)
    assert not verified.confirms("fewer_rows", "ttft", 95)  # it harms
    assert not verified.confirms("larger_budget", "ttft", 95)  # it does nothing
    assert not verified.confirms("more_blocks", "ttft", 95)
    assert not verified.confirms("paged", "ttft", 95)  # it could not be turned
    assert not verified.confirms("larger_blocks", "ttft", 95)  # it was refused


def test_a_knob_that_drops_requests_does_not_win(verified):
    (reserve,) = [one for one in verified.turned if one.name == "reserve"]
    assert reserve.num_served == 50
    assert reserve.after_s["ttft", 95] < verified.before_s["ttft", 95] / 1.9
    assert verified.best("ttft", 95, SETTING).name != "reserve"


def test_the_table_is_sorted_and_marks_the_named(verified):
    lines = verify_table(verified, "ttft", 95, "more_rows").splitlines()
    assert lines[0].startswith("TTFT p95, one step of each knob")
    marked = [line for line in lines if line.startswith("*")]
    assert len(marked) == 1
    assert "* scheduler.max_num_seqs=128 " in marked[0]
    assert "-25.0 %     +0.0 %  setting" in marked[0]
    assert "50 fewer served" in lines[2]
    assert "router.num_replicas=2" in lines[3]
    (refused,) = [line for line in lines if "cache.block_size=32" in line]
    assert refused.endswith("-  refused [1]")
    assert lines[-1] == "  [1] blocks of 32 tokens are refused."


def test_latencies_of_nobody_are_none():
    assert latencies_s(alike(5, {"queueing": 1.0}, reason="ABORTED"), PERCENTILES) == {}
    single = alike(5, {"queueing": 1.0}, {}, num_output_tokens=1)
    assert set(latencies_s(single, PERCENTILES)) == {("ttft", 50), ("ttft", 95)}

import json

import pytest

from paxkv.policies.eviction import EVICTION_POLICIES, Lru
from paxkv.prefix_replay import (
    TraceRequest,
    read_trace,
    replay_optimum,
    replay_prefixes,
)

LINE = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}


def make_requests(*lookups):
    return [
        TraceRequest(timestamp_ms=0.0, input_length=1, output_length=1, hash_ids=ids)
        for ids in lookups
    ]


def write_trace(path, *lines):
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n")
    return path


def test_counts_hits_up_to_the_first_miss():
    requests = make_requests((0, 1, 2), (0, 1, 3), (0, 1, 2, 4), (5, 1))
    counts = replay_prefixes(requests, None, Lru())
    assert (counts.num_lookups, counts.num_hits, counts.num_evicted) == (12, 5, 0)
    assert counts.hit_rate == 5 / 12


def test_a_small_cache_evicts_tails_before_heads():
    requests = make_requests((0, 1), (2, 3), (0, 1))
    lru = replay_prefixes(requests, 3, Lru())
    assert (lru.num_hits, lru.num_evicted) == (1, 2)  # block 1, and then 3
    assert replay_optimum(requests, 3).num_hits == 1
    assert replay_optimum(requests, 4).num_hits == 2


def test_all_policies_hit_alike_without_limit():
    requests = make_requests((0, 1), (2, 3), (0, 1), (0, 3), (2, 3, 4), ())
    counts = {replay_prefixes(requests, None, p()) for p in EVICTION_POLICIES.values()}
    assert counts == {replay_optimum(requests, None)}


def test_each_request_is_announced():
    calls = []
    requests = make_requests((0,), (1,), (0,))
    replay_prefixes(requests, 2, Lru(), lambda: calls.append(1))
    replay_optimum(requests, 2, lambda: calls.append(2))
    assert calls == [1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("requests", [(), ((),)])
def test_nothing_to_look_up_is_no_hit(requests):
    counts = replay_prefixes(make_requests(*requests), 1, Lru())
    assert counts.num_lookups == 0 and counts.hit_rate == 0


@pytest.mark.parametrize("num_blocks", [2, 0])
def test_a_capacity_below_the_longest_request_is_refused(num_blocks):
    with pytest.raises(
        ValueError, match=f"{num_blocks=} cannot hold.*of 3 blocks; need ≥ 3"
    ):
        replay_prefixes(make_requests((0, 1, 2)), num_blocks, Lru())


def test_reads_a_trace(tmp_path):
    trace = read_trace(write_trace(tmp_path / "t.jsonl", LINE, LINE | {"hash_ids": []}))
    assert trace.malformed == ()
    assert trace.requests[0] == TraceRequest(
        timestamp_ms=0.0, input_length=600, output_length=5, hash_ids=(0, 1)
    )
    assert (trace.num_lookups, trace.longest) == (2, 2)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "line 2: Expecting"),
        ("", "line 2: Expecting value"),
        ("[1]", "line 2: is a list, not an object"),
        ('{"timestamp": 0}', "line 2: has no hash_ids, input_length, output_length"),
        (LINE | {"hash_ids": [0, "1"]}, "line 2: hash_ids is no list of integers ≥ 0"),
        (LINE | {"hash_ids": [-1]}, "line 2: hash_ids"),
        (LINE | {"hash_ids": 3}, "line 2: hash_ids"),
        (LINE | {"input_length": True}, "line 2: input_length=True is no integer ≥ 0"),
        (LINE | {"output_length": 1.5}, "line 2: output_length=1.5"),
        (LINE | {"timestamp": "0"}, "line 2: timestamp='0' is no number"),
        (LINE | {"timestamp": float("nan")}, "line 2: timestamp=nan is no number"),
        ("[" * 100_000, "line 2: is nested too deeply"),
        (json.dumps(LINE | {"timestamp": 10**400}), "line 2: timestamp=1000"),
        ("9" * 5_000, "line 2: "),
    ],
)
def test_malformed_lines_are_reported_with_their_number(tmp_path, line, why):
    trace = read_trace(write_trace(tmp_path / "t.jsonl", LINE, line, LINE))
    assert len(trace.requests) == 2
    (found,) = trace.malformed
    assert found.startswith(why)

"""Prefix caches alone: replays of traces, and three indexes of the same prompts."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs import trial
from paxkv.reproduction.figure import NotAvailable
from paxkv.reproduction.runners import prefix_index, prefix_replay
from paxkv.reproduction.runners.published_traces import FOLDER

NAME = "conversation_trace.jsonl"
LINES = ((1_100, (0, 1, 2)), (600, (0, 3)), (1_536, (0, 1, 4)), (600, (0, 3)))


def replay_tree(**replay):
    tree = trial.get_config("llama3_8b,h100,vllm_v1,mooncake").to_dict()
    tree["workload"]["num_requests"] = None
    tree["replay"] = {"capacities": (None,), "eviction": "lru", "block_size": None}
    tree["replay"].update(replay)
    return tree


@pytest.fixture
def traces(tmp_path, monkeypatch):
    """A folder that has the trace in a folder of its own."""
    lines = [
        json.dumps(
            {"timestamp": 0, "input_length": n, "output_length": 1, "hash_ids": hash_ids}
        )
        for n, hash_ids in LINES
    ]
    (tmp_path / "mooncake").mkdir()
    (tmp_path / "mooncake" / NAME).write_text("\n".join(lines) + "\n")
    monkeypatch.setenv(FOLDER, str(tmp_path))
    return tmp_path


def test_a_trace_is_counted_in_its_own_blocks_or_in_whole_ones(traces):
    found = prefix_replay.run(replay_tree(capacities=(3 * 512, None)), "calibrated")
    # hits of the prompts: none; 0; 0, 1; 0 and 3, the last of which is not full
    assert (found["num_lookups"], found["num_hits"]) == (10, [4, 5])
    whole = prefix_replay.run(replay_tree(block_size=512), "calibrated")
    assert (whole["num_lookups"], whole["num_hits"]) == (2 + 1 + 3 + 1, [4])
    small = prefix_replay.run(replay_tree(block_size=64), "calibrated")
    assert small["num_hits"] == [8 + (8 + 8) + 9]  # 64 tokens of block 3 fill one
    assert small["most_found_percent"] == 100 * 33 * 64 / sum(n for n, _ in LINES)


def test_the_policy_of_eviction_is_the_one_that_is_named(traces):
    mru, best = (
        prefix_replay.run(replay_tree(capacities=(4 * 512,), eviction=name), "calibrated")
        for name in ("mru", "belady")
    )
    assert (mru["num_hits"], best["num_hits"]) == ([4], [5])


def test_an_absent_trace_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv(FOLDER, raising=False)
    with pytest.raises(NotAvailable, match=f"{NAME} is not shipped.*{FOLDER}"):
        prefix_replay.run(replay_tree(), "calibrated")
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with pytest.raises(NotAvailable, match=f"has no {NAME}"):
        prefix_replay.run(replay_tree(), "calibrated")


def test_drawn_prompts_share_their_prefixes():
    tree = trial.get_config("llama3_8b,h100,vllm_v1,shared_prefix").to_dict()
    tree["workload"].update(num_requests=5, shared_tokens=100)
    tree["replay"] = {"capacities": (None,), "eviction": "lru", "block_size": 16}
    assert prefix_replay.run(tree, "calibrated")["num_hits"] == [4 * (100 // 16)]


PROMPTS = st.lists(st.lists(st.integers(0, 2), max_size=5), min_size=1, max_size=8)


@given(prompts=PROMPTS, num_blocks=st.integers(5, 9), block_size=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_three_indexes_find_the_same(prompts, num_blocks, block_size):
    indexes = [
        prefix_index.cache_index(num_blocks, block_size),
        prefix_index.radix_index(num_blocks, block_size),
        prefix_index.hash_index(num_blocks, block_size),
    ]
    for blocks in prompts:
        tokens = tuple(block for block in blocks for _ in range(block_size))
        first, *others = [index(tokens) for index in indexes]
        assert others == [first, first]


def test_an_index_that_evicts_by_another_rule_finds_others():
    prompts = [(0, 1), (2, 3), (4, 5), (2, 3), (0, 1)]
    lru, mru = (prefix_index.cache_index(4, 1, eviction) for eviction in ("lru", "mru"))
    assert [lru(tokens) for tokens in prompts] != [mru(tokens) for tokens in prompts]


def test_the_order_of_admission_decides_what_is_found():
    tree = trial.get_config("llama3_8b,h100,sglang,shared_prefix").to_dict()
    tree["cache"].update(granularity="block", num_blocks=60)
    tree["workload"].update(
        num_requests=16,
        arrival="at_once",
        num_prefixes=4,
        shared_tokens=256,
        popularity_exponent=0.0,
        output_tokens=4,
    )
    tree["index"] = {"capacities": (40, None), "eviction": "lru"}
    found = {}
    for scheduling in ("fcfs", "longest_prefix"):
        tree["scheduler"]["scheduling"] = scheduling
        found[scheduling] = prefix_index.run(tree, "calibrated")
    longest_first = found["longest_prefix"]
    assert longest_first["largest_difference_tokens"] == 0
    assert longest_first["hit_tokens"]["cache"][-1] == (16 - 4) * 256
    assert longest_first["percent_of_optimum"] > 95
    assert found["fcfs"]["percent_of_optimum"] < 85

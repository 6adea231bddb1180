from collections import Counter
from itertools import islice, repeat

import numpy as np
import pytest

from paxkv.workloads.structures import STRUCTURES
from paxkv.workloads.tokens import DOCUMENT, FRESH, HASH, PREFIX
from paxkv.workloads.workload_config import WorkloadConfig


def turns_of(name, count, *, pair=(10, 4), seed=0, **settings):
    config = WorkloadConfig(num_requests=1, structure=name, **settings)
    rng = np.random.default_rng(seed)
    return list(islice(STRUCTURES[name](config, rng, repeat(pair)), count))


def keys_of(turn):
    return [segment.key for segment in turn.segments]


def is_fresh(key):
    return FRESH <= key < min(PREFIX, DOCUMENT, HASH)


def test_single_requests_share_nothing():
    sessions = turns_of("single", 100)
    assert all(len(turns) == 1 and len(turns[0].segments) == 1 for turns in sessions)
    assert len({keys_of(turns[0])[0] for turns in sessions}) == 100
    assert all((t[0].input_tokens, t[0].output_tokens) == (10, 4) for t in sessions)


def test_chats_have_turns_and_thoughts():
    sessions = turns_of("chat", 2_000, min_turns=2, max_turns=5, think_s=8.0)
    counts = Counter(len(turns) for turns in sessions)
    assert sorted(counts) == [2, 3, 4, 5]
    assert list(counts.values()) == pytest.approx([500] * 4, rel=0.15)
    later = [turn.think_s for turns in sessions for turn in turns[1:]]
    assert all(turns[0].think_s == 0 for turns in sessions)
    assert np.mean(later) == pytest.approx(8.0, rel=0.05)
    assert np.std(later) == pytest.approx(8.0, rel=0.05)  # exponential
    keys = [key for turns in sessions for turn in turns for key in keys_of(turn)]
    assert len(set(keys)) == len(keys)


def test_chats_begin_with_the_same_system_prompt():
    sessions = turns_of("chat", 10, max_turns=3, shared_tokens=7)
    assert {keys_of(turns[0])[0] for turns in sessions} == {PREFIX}
    assert all(turns[0].input_tokens == 17 for turns in sessions)
    assert all(turn.input_tokens == 10 for turns in sessions for turn in turns[1:])


def test_open_chats_bring_the_history_of_earlier_turns():
    pair = (10, 4)
    new = turns_of("open_chat", 50, pair=pair, new_conversations=1.0)
    assert all(turns[0].input_tokens == 10 for turns in new)
    sessions = turns_of("open_chat", 4_000, pair=pair, new_conversations=0.25)
    assert all(len(turns) == 1 for turns in sessions)
    before = Counter((turns[0].input_tokens - 10) / 14 for turns in sessions)
    # of turns, 1/4 are first, 3/16 second, 9/64 third
    assert [before[i] for i in range(3)] == pytest.approx([1000, 750, 562], rel=0.12)
    keys = [key for turns in sessions for key in keys_of(turns[0])]
    assert len(set(keys)) == len(keys) and all(is_fresh(key) for key in keys)


def test_open_chats_draw_no_more_than_a_prompt_keeps():
    sessions = turns_of(
        "open_chat", 500, new_conversations=0.25, max_prompt_tokens=30, pair=(10, 4)
    )
    lengths = Counter(turns[0].input_tokens for turns in sessions)
    assert sorted(lengths) == [10, 24, 30]


def test_agents_share_the_prefix_of_their_kind():
    settings = {"shared_tokens": 50, "num_prefixes": 3, "tool_tokens": 40}
    sessions = turns_of("agents", 1_100, min_turns=3, max_turns=3, **settings)
    kinds = Counter(keys_of(turns[0])[0] - PREFIX for turns in sessions)
    # Zipf: 1, 1/2 and 1/3 of 11/6
    assert [kinds[i] for i in range(3)] == pytest.approx([600, 300, 200], rel=0.15)
    assert all(turns[0].input_tokens == 60 for turns in sessions)
    tools = [turn.input_tokens for turns in sessions for turn in turns[1:]]
    assert np.mean(tools) == pytest.approx(40, rel=0.03)
    assert all(
        len(turn.segments) == 1 and is_fresh(keys_of(turn)[0])
        for turns in sessions
        for turn in turns[1:]
    )


def test_shared_prefixes_are_chosen_by_popularity():
    settings = {"shared_tokens": 80, "num_prefixes": 4, "popularity_exponent": 0}
    sessions = turns_of("shared_prefix", 4_000, **settings)
    kinds = Counter(keys_of(turns[0])[0] - PREFIX for turns in sessions)
    assert [kinds[i] for i in range(4)] == pytest.approx([1_000] * 4, rel=0.15)
    assert all([s.num_tokens for s in turns[0].segments] == [80, 10] for turns in sessions)
    assert len({keys_of(turns[0])[1] for turns in sessions}) == 4_000


def test_documents_come_in_an_order_that_shares_prefixes():
    settings = {"num_documents": 20, "documents_per_request": 3, "document_tokens": 30}
    sessions = turns_of("rag", 2_000, shared_tokens=5, **settings)
    chosen = [[key - DOCUMENT for key in keys_of(turns[0])[1:-1]] for turns in sessions]
    assert all(len(set(d)) == 3 and d == sorted(d) for d in chosen)
    assert {keys_of(turns[0])[0] for turns in sessions} == {PREFIX}
    assert all(turns[0].input_tokens == 5 + 90 + 10 for turns in sessions)
    counts = Counter(document for documents in chosen for document in documents)
    assert counts[0] > counts[1] > counts[4] > counts[19] > 0
    first = Counter(documents[0] for documents in chosen)
    assert first[0] == counts[0], "the most popular document stands first"


def test_one_document_may_be_asked_for_much_more_than_the_rest():
    settings = {"num_documents": 2_000, "documents_per_request": 2}
    sessions = turns_of("rag", 200, popularity_exponent=20.0, **settings)
    assert all(keys_of(turns[0])[0] == DOCUMENT for turns in sessions)


@pytest.mark.parametrize("name", list(STRUCTURES))
def test_structures_follow_the_seed(name):
    settings = {"shared_tokens": 3, "num_prefixes": 50}
    if name in ("chat", "agents"):
        settings["max_turns"] = 9
    if name == "open_chat":
        settings["new_conversations"] = 0.5
    first, again, other = (turns_of(name, 50, seed=seed, **settings) for seed in (1, 1, 2))
    assert first == again
    assert (first == other) == (name == "single")  # whose lengths are drawn elsewhere

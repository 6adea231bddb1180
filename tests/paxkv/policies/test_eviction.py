import itertools
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxkv.policies.eviction import (
    EVICTION_POLICIES,
    Belady,
    CostAware,
    EvictionPolicy,
    Fifo,
    Lfu,
    Lru,
    Mru,
    Priority,
)
from paxkv.prefix_cache import DEFAULT_PRIORITY, CacheNode
from paxkv.prefix_replay import TraceRequest, replay_optimum, replay_prefixes

NODE_IDS = itertools.count(1)
ROOT = CacheNode(0, None, (), num_groups=1, num_tokens=0, created=0)


def make_node(*, created=1, parent=ROOT, key=(0,), **fields):
    node = CacheNode(
        next(NODE_IDS), parent, key, num_groups=1, num_tokens=16, created=created
    )
    for name, value in fields.items():
        setattr(node, name, value)
    return node


def order(policy, nodes, now_s=0.0):
    """Indices of the nodes, the first to go first."""
    return sorted(range(len(nodes)), key=lambda i: policy.rank(nodes[i], now_s))


@pytest.mark.parametrize("name", EVICTION_POLICIES)
def test_each_offered_policy_is_one(name):
    assert isinstance(EVICTION_POLICIES[name](), EvictionPolicy)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [(Lru(), [1, 2, 0]), (Mru(), [0, 2, 1]), (Fifo(), [0, 1, 2]), (Lfu(), [1, 0, 2])],
)
def test_order_of_use(policy, expected):
    nodes = [
        make_node(created=1, last_used=9, num_uses=2),
        make_node(created=2, last_used=2, num_uses=1),
        make_node(created=3, last_used=7, num_uses=3),
    ]
    assert order(policy, nodes) == expected


def test_lfu_ties_go_by_last_use():
    assert order(Lfu(), [make_node(last_used=5), make_node(last_used=4)]) == [1, 0]


def test_lowest_priority_goes_first_then_the_least_recently_used():
    nodes = [make_node(last_used=t, priority=p) for t, p in [(1, 90), (3, 35), (2, 35)]]
    assert order(Priority(), nodes) == [2, 1, 0]


def test_an_expired_priority_joins_the_back_of_the_default_queue():
    policy = Priority()
    kept = make_node(last_used=1, priority=90, expires_s=10.0)
    earlier = make_node(last_used=2)
    low = make_node(last_used=3, priority=0, expires_s=10.0)
    later = make_node(last_used=4)
    for node, now_s in [(kept, 1.0), (earlier, 2.0), (low, 3.0)]:  # as they get idle
        policy.rank(node, now_s)
    nodes = [kept, earlier, low]
    assert order(policy, nodes, now_s=9.0) == [2, 1, 0]
    policy.rank(later, 11.0)
    nodes.append(later)
    assert order(policy, nodes, now_s=12.0)[0] == 1
    assert order(policy, nodes, now_s=12.0)[-1] == 3
    assert policy.rank(kept, 12.0)[0] == DEFAULT_PRIORITY == policy.rank(later, 12.0)[0]


def test_the_log_of_priorities_is_bounded():
    policy = Priority()
    for tick in range(5 * policy.LOG_LENGTH):
        policy.rank(make_node(last_used=tick), float(tick))
    assert len(policy._ticks) <= 2 * policy.LOG_LENGTH
    forgotten = make_node(last_used=7, priority=90, expires_s=8.0)
    assert policy.rank(forgotten, 1e6) == (DEFAULT_PRIORITY, 7)


def test_what_costs_more_to_compute_again_stays_longer():
    deep = [make_node(last_used=5), make_node(last_used=5)]
    deep[0].depth = 100
    assert order(CostAware(), deep) == [1, 0]
    used = [make_node(last_used=5, num_uses=2), make_node(last_used=6, num_uses=1)]
    assert order(CostAware(), used) == [1, 0]
    assert order(CostAware(ticks_per_use=0.0), used) == [0, 1]
    (rank,) = CostAware(linear_tokens=16.0, ticks_per_use=10.0).rank(deep[0], 0.0)
    assert rank == 5 + 10 * (1 + 99)


def test_belady_gives_up_what_is_used_last_or_never():
    policy = Belady([[(1,), (2,)], [(3,)], [(1,)], [(3,)]])
    first = make_node(key=(1,))
    below = make_node(key=(2,), parent=first)
    third, unknown = make_node(key=(3,)), make_node(key=(9,))
    policy.advance()
    assert order(policy, [third, first, below])[0] == 2
    assert order(policy, [first, third]) == [0, 1]  # next uses: look-ups 2 and 1
    policy.advance()
    assert order(policy, [first, third]) == [1, 0]  # 2 and 3
    assert order(policy, [third, unknown]) == [1, 0]
    assert policy.rank(make_node(key=(2,), parent=unknown), 0.0)[0] == float("-inf")


# --- Belady against all there is to choose


def most_hits(lookups, capacity):
    """Of every way to evict idle leaves when there is no room, the one with most hits."""
    paths = [[keys[: i + 1] for i in range(len(keys))] for keys in lookups]

    @cache
    def best(index, cached):
        if index == len(paths):
            return 0
        path = paths[index]
        hits = sum(prefix in cached for prefix in path)
        held = cached | frozenset(path)
        return hits + max(
            best(index + 1, kept) for kept in shrunk(held, frozenset(path), capacity)
        )

    return best(0, frozenset())


def shrunk(held, owned, capacity):
    """All sets of at most `capacity` prefixes that remain as idle leaves go one by one."""
    states = {held}
    for _ in range(max(0, len(held) - capacity)):
        states = {
            state - {leaf}
            for state in states
            for leaf in state - owned
            if not any(len(p) > len(leaf) and p[: len(leaf)] == leaf for p in state)
        }
    return states


LOOKUPS = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=3).map(tuple), min_size=1, max_size=8
)


@given(lookups=LOOKUPS, capacity=st.integers(3, 6))
def test_belady_is_the_optimum_and_no_policy_beats_it(lookups, capacity):
    requests = [
        TraceRequest(timestamp_ms=0.0, input_length=1, output_length=1, hash_ids=ids)
        for ids in lookups
    ]
    optimum = replay_optimum(requests, capacity).num_hits
    assert optimum == most_hits(lookups, capacity)
    for make in EVICTION_POLICIES.values():
        assert replay_prefixes(requests, capacity, make()).num_hits <= optimum

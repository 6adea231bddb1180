import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxkv.block_pool import NULL_BLOCK
from paxkv.cache_keys import TOKEN_BYTES, block_key, token_bytes
from paxkv.events import EventKind
from paxkv.policies.eviction import Priority
from paxkv.prefix_cache import DEFAULT_PRIORITY
from paxkv.request_options import Media
from tests.cached_paths import SIZE, A, B, C, D, Filled

# Looking up.


def test_a_match_is_the_longest_path_of_whole_blocks():
    filled = Filled()
    path = filled.put(A, B, C)
    assert [node.depth for node in path] == [1, 2, 3]
    assert filled.found(A, B, C) == path
    assert filled.found(A, B, D) == path[:2]
    assert filled.found(A, C) == path[:1]
    assert filled.found(B, C) == []  # a block is nothing without what comes before it
    assert filled.found(A, B[: 3 * TOKEN_BYTES]) == path[:1]


def test_roots_keep_requests_apart():
    filled = Filled()
    other = filled.cache.root((("salt", "x"),))
    assert other is not filled.root
    filled.put(A)
    assert filled.cache.match(other, A) == []
    (theirs,) = filled.put(A, root=other)
    assert filled.cache.root((("salt", "x"),)) is other  # kept with its first child
    (mine,) = filled.found(A)
    assert theirs.blocks != mine.blocks
    assert len(filled.cache.roots) == 2


def test_media_are_part_of_the_key():
    cat, dog = (
        Media(kind="image", digest=hashlib.sha256(name).digest(), start=5, end=7)
        for name in (b"cat", b"dog")
    )
    filled = Filled()
    path = filled.put(A, block_key(B, SIZE, [cat]))
    assert filled.found(A, B, media=[cat]) == path
    assert filled.found(A, B, media=[dog]) == path[:1]
    assert filled.found(A, B) == path[:1]


def test_node_ids_are_never_used_again():
    filled, seen = Filled(), set()
    for _ in range(20):
        (node,) = filled.put(A)
        assert node.node_id not in seen
        seen.add(node.node_id)
        filled.cache.drop(node)


# Part of a block.


@pytest.mark.parametrize(
    ("tokens", "key", "common"),
    [
        ((5, 6, 9), (5, 6, 7, 8), 2),
        ((5, 7, 0), (5, 7, 1, 1), 2),
        ((5, 7, 2), (5, 7, 3), 2),  # a partial leaf
        ((5, 7, 3, 9), (5, 7, 3), 3),
        ((9,), (9, 9, 9, 9), 1),
        ((5,), (5, 6, 7, 8), 1),
        ((4, 6, 7, 8), None, 0),
        ((), None, 0),
    ],
)
def test_the_child_that_begins_with_most_of_the_tokens(tokens, key, common):
    filled = Filled(by_token=True)
    for child in ((9, 9, 9, 9), (5, 7, 3), (5, 6, 7, 8), (5, 7, 1, 1)):
        filled.put(token_bytes(child))
    found = filled.cache.match_within(filled.root, token_bytes(tokens))
    if key is None:
        assert found is None
    else:
        node, num_tokens = found
        assert num_tokens == common
        assert node.key[: common * TOKEN_BYTES] == token_bytes(key[:common])


tokens_of_a_block = st.lists(st.integers(0, 2), min_size=1, max_size=SIZE).map(tuple)


@given(st.lists(tokens_of_a_block, max_size=20), st.lists(tokens_of_a_block, max_size=8))
def test_no_other_child_has_more_in_common(keys, queries):
    filled = Filled(num_blocks=64, by_token=True)
    for key in keys:
        filled.put(token_bytes(key))

    def common(key, tokens):
        return next(
            (n for n in range(min(len(key), len(tokens)), 0, -1) if key[:n] == tokens[:n]),
            0,
        )

    for tokens in queries:
        best = max((common(key, tokens) for key in keys), default=0)
        found = filled.cache.match_within(filled.root, token_bytes(tokens))
        assert (found[1] if found else 0) == best
        assert not found or found[0].key[: best * TOKEN_BYTES] == token_bytes(tokens[:best])


def test_what_has_left_the_tree_matches_in_no_part():
    filled = Filled(by_token=True)
    (node,) = filled.put(A)
    filled.cache.drop(node)
    assert filled.cache.match_within(filled.root, A[: 2 * TOKEN_BYTES]) is None


# Inserting.


def test_an_equal_block_is_inserted_once():
    filled = Filled()
    (first,) = filled.put(A)
    assert filled.cache.insert(filled.root, A, SIZE) is first
    assert filled.put(A) == [first]
    assert filled.pools[0].num_idle == 1


def test_attaching_makes_a_block_outlive_its_owner():
    filled = Filled()
    pool = filled.pools[0]
    (block,) = pool.allocate(1)
    node = filled.cache.insert(filled.root, A, SIZE)
    filled.cache.attach(node, 0, block)
    assert pool.node_of[block] is node
    assert pool.num_idle == 0
    pool.free([block])
    assert (pool.num_idle, pool.num_free, pool.num_available) == (1, 7, 8)
    assert node.is_idle == [True]
    with pytest.raises(AssertionError, match="the node has a block"):
        filled.cache.attach(node, 0, block)
    assert [event.kind for event in filled.events] == [EventKind.CACHE]


def test_a_root_that_left_with_its_last_child_comes_back():
    filled = Filled()
    (node,) = filled.put(A)
    filled.cache.drop(node)
    assert filled.cache.roots == ()
    filled.put(B)  # by a request that still holds the old root
    assert filled.cache.roots == (filled.root,)
    assert filled.cache.root(()) is filled.root
    assert len(filled.found(B)) == 1


# Giving up.


def test_tails_go_before_heads_and_the_least_recently_used_branch_first():
    filled = Filled()
    filled.put(A, B)
    filled.put(A, C)
    filled.put(D)
    assert filled.evict(1) == {B}
    assert filled.evict(1) == {C}
    assert filled.evict(1) == {A}
    assert filled.evict(1) == {D}
    assert filled.cache.num_evicted == 4
    assert list(filled.cache.nodes()) == []


def test_a_hit_refreshes_the_whole_path():
    filled = Filled()
    filled.put(A, B)
    filled.put(C, D)
    assert filled.hit(A, B) == 2
    assert {node.num_uses for node in filled.found(A, B)} == {2}
    assert filled.evict(2) == {C, D}
    assert len(filled.found(A, B)) == 2


def test_owned_blocks_are_never_evicted():
    filled = Filled()
    path = filled.put(A, B)
    filled.put(C)
    filled.pools[0].share([node.blocks[0] for node in path])
    assert filled.evict(1) == {C}
    assert filled.pools[0].num_available == 8 - 2
    assert len(filled.found(A, B)) == 2


def test_an_evicted_block_is_free_and_its_key_gone():
    filled = Filled(num_blocks=3)
    (node,) = filled.put(A)
    (block,) = node.blocks
    filled.events.clear()
    assert sorted(filled.pools[0].allocate(2)) == [1, 2]
    assert filled.found(A) == []
    assert (node.blocks, node.is_alive) == ([NULL_BLOCK], False)
    assert filled.pools[0].node_of[block] is None
    assert [(event.kind, event.blocks) for event in filled.events] == [
        (EventKind.EVICT, (block,))
    ]


def test_dropping_takes_all_that_hangs_below():
    filled = Filled()
    head, *_ = filled.put(A, B, C)
    filled.put(A, D)
    filled.put(B)
    assert filled.cache.drop(head) == 4
    assert [node.key for node in filled.cache.nodes()] == [B]
    assert filled.pools[0].num_free == 7


def test_dropped_blocks_with_an_owner_stay_with_it_and_get_free_after_it():
    filled = Filled()
    path = filled.put(A, B)
    blocks = [node.blocks[0] for node in path]
    filled.pools[0].share(blocks[:1])
    assert filled.cache.drop(path[0]) == 1
    assert filled.pools[0].refcounts[blocks[0]] == 1
    filled.pools[0].free(blocks[:1])
    assert filled.pools[0].num_free == 8


def test_reset_forgets_everything_that_is_idle():
    filled = Filled()
    path = filled.put(A, B)
    filled.put(C, root=filled.cache.root((("salt", "x"),)))
    filled.pools[0].share([path[0].blocks[0]])
    assert filled.cache.reset() == 2
    assert filled.cache.roots == ()
    assert filled.pools[0].num_idle == 0
    assert filled.pools[0].num_free == 7
    assert filled.found(A) == []


# Retention.


def keep(path, priority, duration_s=None):
    for node in path:
        node.priority, node.duration_s = priority, duration_s


def test_priorities_go_before_age():
    filled = Filled(policy=Priority())
    keep(filled.put(A), 90)
    filled.put(B)
    keep(filled.put(C), 0)
    assert {node.priority for node in filled.found(B)} == {DEFAULT_PRIORITY}
    filled.cache.set_now(0.0)
    # blocks are idle since before; ranks are taken anew at each eviction
    assert [filled.evict(1) for _ in range(3)] == [{C}, {B}, {A}]


def test_a_priority_ends_after_its_duration_counted_from_the_release():
    def lost_at(now_s):
        filled = Filled(policy=Priority())
        filled.cache.set_now(10.0)
        (kept,) = path = filled.put(A)
        keep(path, 90, duration_s=5.0)
        filled.hit(A)  # and its release
        assert kept.expires_s == 15.0
        filled.put(B)
        filled.cache.set_now(16.0)
        filled.put(C)
        filled.cache.set_now(now_s)
        return [filled.evict(1), filled.evict(1)]

    # expired, it counts as used at 15 s: after B, before C
    assert lost_at(16.0) == [{B}, {A}]
    assert lost_at(14.9) == [{B}, {C}]


def test_priorities_never_break_a_path():
    filled = Filled(policy=Priority())
    head, tail = filled.put(A, B)
    keep([head], 0)
    keep([tail], 100)
    assert filled.evict(1) == {B}
    assert filled.evict(1) == {A}


# All together.


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "hit", "evict", "drop", "reset"]),
            st.lists(st.sampled_from([A, B, C]), min_size=1, max_size=4),
        ),
        max_size=40,
    ),
    st.booleans(),
)
def test_blocks_are_free_or_idle_with_a_key_whatever_happens(actions, by_token):
    filled = Filled(num_blocks=7, by_token=by_token)
    pool = filled.pools[0]
    for action, keys in actions:
        match action:
            case "put":
                filled.put(*keys)
            case "hit":
                filled.hit(*keys)
            case "evict" if pool.num_idle:
                filled.evict(1)
            case "drop" if path := filled.found(*keys):
                filled.cache.drop(path[-1])
            case "reset":
                filled.cache.reset()
        nodes = list(filled.cache.nodes())
        assert sorted([*pool.free_blocks, *(n.blocks[0] for n in nodes)]) == [*range(1, 7)]
        assert pool.num_idle == len(nodes)
        for node in nodes:
            assert pool.node_of[node.blocks[0]] is node
            assert filled.cache.match(node.parent, node.key) == [node]
    num_idle = pool.num_idle
    assert filled.cache.reset() == num_idle
    assert pool.num_free == 6

"""Nodes with a block per cache group, and on the host."""

import pytest

from paxkv.block_pool import NULL_BLOCK
from paxkv.journal import Journal
from paxkv.moves import SwapOut
from paxkv.prefix_cache import NO_SLOT
from paxkv.tiers.host_tier import HostTier
from tests.cached_paths import A, B, C, Filled

# Several groups.


def test_a_group_without_windows_drops_what_nobody_gets_past():
    filled = Filled(windowed=(False, False))
    filled.put(A, B)
    first, second = filled.pools
    first.free(first.allocate(first.num_free + 1))  # B leaves group 0
    assert filled.found(A, B) == filled.found(A)
    assert (first.num_idle, second.num_idle) == (1, 1)  # so it leaves group 1, too


def test_a_windowed_group_may_have_gaps():
    filled = Filled(windowed=(False, True))
    path = filled.put(A, B, C)
    window = filled.pools[1]
    window.free(window.allocate(window.num_free + 2))
    assert filled.found(A, B, C) == path
    assert [node.blocks[1] != NULL_BLOCK for node in path] == [False, False, True]
    assert [filled.cache.is_present(node, 1) for node in path] == [False, False, True]
    assert all(filled.cache.is_present(node, 0) for node in path)


# The host.


def tiered(num_slots=2, **settings):
    journal = Journal()
    host = HostTier(num_slots, 1, journal, **settings)
    return Filled(num_blocks=4, journal=journal, host=host), host, journal


def test_an_evicted_block_lives_on_on_the_host_once_it_is_there():
    filled, host, journal = tiered()
    (node,) = filled.put(A)
    (block,) = node.blocks
    assert filled.evict(1) == set()
    (slot,) = node.host_slots
    assert journal.take_moves() == (SwapOut(group=0, block=block, host_slot=slot),)
    assert filled.found(A) == [node]
    assert not filled.cache.is_present(node, 0)  # the copy has only been planned
    host.committed()
    assert filled.cache.is_present(node, 0)
    filled.cache.drop(node)
    assert host.num_free(0) == 2


def test_a_full_host_gives_up_the_oldest_and_its_node():
    filled, host, _ = tiered(num_slots=1)
    filled.put(A)
    filled.put(B)
    assert filled.evict(1) == set()
    assert filled.evict(1) == {A}
    assert host.num_cached(0) == 1


def test_without_a_free_slot_the_node_goes():
    filled, host, _ = tiered(num_slots=1)
    host.take(0, 1)  # by a swapped sequence
    (node,) = filled.put(A)
    assert filled.evict(1) == {A}
    assert node.host_slots == [NO_SLOT]


@pytest.mark.parametrize(
    ("write_policy", "num_copies"),
    [
        ("write_back", (0, 0)),
        ("write_through", (1, 1)),
        ("write_through_selective", (0, 1)),
    ],
)
def test_when_a_block_is_copied_to_the_host(write_policy, num_copies):
    """At once, at its first hit, or when it is evicted."""
    filled, _, journal = tiered(write_policy=write_policy)
    (node,) = filled.put(A)
    filled.cache.write_through(node)  # as an allocator does with each that is full
    after_put = len(journal.take_moves())
    filled.hit(A)
    assert (after_put, after_put + len(journal.take_moves())) == num_copies
    filled.evict(1)
    assert len(journal.take_moves()) == (write_policy == "write_back")

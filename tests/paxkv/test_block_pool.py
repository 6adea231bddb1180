import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxkv.block_pool import NULL_BLOCK, BlockPool, OutOfBlocks
from tests.cached_paths import A, B, C, Filled


def test_hands_out_every_block_but_the_null_block():
    pool = BlockPool(5)
    assert pool.allocate(4) == [1, 2, 3, 4]
    assert pool.num_free == 0


def test_too_few_free_blocks_takes_none():
    pool = BlockPool(4)
    with pytest.raises(OutOfBlocks, match="count=4 blocks asked, 3 free and 0 idle of 4"):
        pool.allocate(4)
    assert pool.num_free == 3
    assert pool.refcounts == [0, 0, 0, 0]


def test_an_equal_sequence_gets_the_same_blocks_again():
    pool = BlockPool(8)
    blocks = pool.allocate(3)
    pool.free(blocks)
    assert pool.allocate(3) == blocks


def test_shared_block_is_free_after_its_last_owner():
    pool = BlockPool(3)
    blocks = pool.allocate(2)
    pool.share(blocks[:1])
    pool.free(blocks)
    assert pool.num_free == 1
    assert pool.refcounts[blocks[0]] == 1
    pool.free(blocks[:1])
    assert pool.num_free == 2


@pytest.mark.parametrize("block", [NULL_BLOCK, 1, -1, 9])
def test_freeing_or_sharing_what_nobody_owns_raises(block):
    pool = BlockPool(4)
    with pytest.raises(ValueError, match="cannot free"):
        pool.free([block])
    with pytest.raises(ValueError, match="cannot share"):
        pool.share([block])
    assert pool.num_free == 3


def test_a_block_listed_twice_is_freed_once():
    pool = BlockPool(4)
    (block,) = pool.allocate(1)
    with pytest.raises(ValueError, match="freed twice"):
        pool.free([block, block])
    assert sorted(pool.free_blocks) == [1, 2, 3]


@pytest.mark.parametrize("num_blocks", [-1, 0, 1])
def test_pool_without_a_usable_block_is_refused(num_blocks):
    with pytest.raises(ValueError, match=rf"num_blocks={num_blocks}.*raise num_blocks"):
        BlockPool(num_blocks)


def test_shuffle_changes_the_order_only():
    plain, shuffled = BlockPool(50), BlockPool(50, shuffle_seed=1)
    order = shuffled.allocate(49)
    assert order != plain.allocate(49)
    assert sorted(order) == list(range(1, 50))
    assert order == BlockPool(50, shuffle_seed=1).allocate(49)


@given(st.lists(st.integers(0, 5), max_size=60), st.randoms())
def test_every_block_is_free_or_owned(counts, random):
    pool, owned = BlockPool(12), []
    for count in counts:
        if count <= pool.num_free:
            owned.append(pool.allocate(count))
        elif owned:
            pool.free(owned.pop(random.randrange(len(owned))))
        blocks = [block for group in owned for block in group]
        assert len(set(blocks)) == len(blocks)
        assert sorted([*blocks, *pool.free_blocks]) == list(range(1, 12))


# Idle blocks: without an owner, but with a key.


def test_a_block_with_a_key_gets_idle_and_not_free():
    filled = Filled(num_blocks=5)
    pool = filled.pools[0]
    filled.put(A, B)
    assert (pool.num_free, pool.num_idle, pool.num_available) == (2, 2, 4)


def test_free_blocks_go_before_idle_ones():
    filled = Filled(num_blocks=5)
    pool = filled.pools[0]
    filled.put(A, B)
    assert set(pool.allocate(2)) == {3, 4}
    assert pool.num_idle == 2
    assert pool.allocate(1) == [2]  # the tail of the path
    assert pool.allocate(1) == [1]
    assert pool.num_available == 0


def test_one_allocation_may_take_free_and_idle_blocks():
    filled = Filled(num_blocks=5)
    pool = filled.pools[0]
    filled.put(A, B)
    assert sorted(pool.allocate(3)) == [2, 3, 4]
    assert pool.refcounts == [0, 0, 1, 1, 1]
    assert filled.found(A, B) == filled.found(A)


def test_too_few_free_and_idle_blocks_takes_and_evicts_none():
    filled = Filled(num_blocks=4)
    pool = filled.pools[0]
    path = filled.put(A, B)
    with pytest.raises(OutOfBlocks, match="count=4 blocks asked, 1 free and 2 idle of 4"):
        pool.allocate(4)
    assert (pool.num_free, pool.num_idle) == (1, 2)
    assert filled.found(A, B) == path


def test_sharing_an_idle_block_makes_it_owned_again():
    filled = Filled(num_blocks=5)
    pool = filled.pools[0]
    blocks = [node.blocks[0] for node in filled.put(A, B)]
    pool.share(blocks)
    assert [pool.refcounts[block] for block in blocks] == [1, 1]
    assert (pool.num_idle, pool.num_available) == (0, 2)
    pool.share(blocks[:1])
    pool.free(blocks)
    assert pool.num_idle == 1  # the other still has an owner
    pool.free(blocks[:1])
    assert pool.num_idle == 2


def test_an_idle_block_is_not_freed_again():
    filled = Filled(num_blocks=4)
    (node,) = filled.put(A)
    with pytest.raises(ValueError, match="cannot free.*freed twice"):
        filled.pools[0].free(node.blocks)
    assert filled.pools[0].num_idle == 1


def test_what_lost_its_key_cannot_be_shared():
    filled = Filled(num_blocks=4)
    (node,) = filled.put(A)
    (block,) = node.blocks
    filled.cache.drop(node)
    with pytest.raises(ValueError, match="cannot share"):
        filled.pools[0].share([block])
    assert filled.pools[0].num_free == 3


def test_a_duplicate_is_one_until_it_is_free():
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    pool.duplicates.update(blocks)
    pool.free(blocks[:1])
    assert pool.duplicates == {blocks[1]}


@given(st.lists(st.sampled_from([(A,), (A, B), (A, C), (B, C), (C,), ()]), max_size=40))
def test_every_block_is_free_idle_or_owned(paths):
    """Owners come and go; an empty path frees all that is owned."""
    filled, owned = Filled(num_blocks=6), []
    pool = filled.pools[0]
    for keys in paths:
        if not keys:
            while owned:
                pool.free(owned.pop())
        elif len(keys) <= pool.num_available:
            nodes = filled.put(*keys)
            pool.share(blocks := [node.blocks[0] for node in nodes])
            owned.append(blocks)
        held = {block for blocks in owned for block in blocks}
        idle = {node.blocks[0] for node in filled.cache.nodes()} - held
        assert pool.num_idle == len(idle)
        assert sorted([*held, *idle, *pool.free_blocks]) == list(range(1, 6))

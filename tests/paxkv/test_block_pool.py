import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxkv.block_pool import NULL_BLOCK, BlockPool, OutOfBlocks


def test_hands_out_every_block_but_the_null_block():
    pool = BlockPool(5)
    assert pool.allocate(4) == [1, 2, 3, 4]
    assert pool.num_free == 0


def test_too_few_free_blocks_takes_none():
    pool = BlockPool(4)
    with pytest.raises(OutOfBlocks, match="count=4 blocks asked, 3 free of 4"):
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

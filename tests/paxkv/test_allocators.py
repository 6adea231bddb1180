from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxkv.allocators import ALLOCATORS, make_allocator
from paxkv.allocators.buddy import BuddyArena, carve, next_power_of_two
from paxkv.config import AllocatorName, CacheConfig
from paxkv.sequence_tables import SequenceTables
from tests.fakes import make_engine, make_request


def make(allocator="paged", *, num_blocks=17, block_size=4, max_context=64, rows=8):
    tables = SequenceTables(rows, max_context, (-(-max_context // block_size),))
    config = CacheConfig(block_size=block_size, allocator=allocator)
    made = make_allocator(
        config, num_blocks=num_blocks, tables=tables, max_context=max_context
    )
    return made, tables


def test_every_name_of_the_config_is_offered():
    assert tuple(ALLOCATORS) == get_args(AllocatorName)


# Paged.


def test_paged_admits_if_all_known_tokens_fit_but_takes_only_the_first_chunk():
    paged, tables = make(num_blocks=6)  # 5 usable blocks of 4
    row = tables.acquire()
    assert paged.admit(row, make_request(21), keep_free=0) is None
    assert paged.admit(row, make_request(17), keep_free=1) is None
    assert paged.usage(0).num_free == 5
    assert paged.admit(row, make_request(16), keep_free=1) == 0  # cached tokens
    assert tables.blocks(0, row) == []
    assert paged.extend(row, 4)
    assert tables.blocks(0, row) == [1]


def test_paged_extends_to_what_is_needed_or_not_at_all():
    paged, tables = make(num_blocks=6)
    row = tables.acquire()
    assert paged.admit(row, make_request(3), keep_free=0) == 0
    assert paged.extend(row, 4)
    assert tables.blocks(0, row) == [1]
    assert paged.extend(row, 5)
    assert tables.blocks(0, row) == [1, 2]
    assert not paged.extend(row, 21)
    assert tables.blocks(0, row) == [1, 2]
    paged.release(row)
    assert paged.usage(0).num_free == 5
    assert tables.blocks(0, row) == []


def test_paged_last_generated_token_needs_no_position():
    paged, _ = make(num_blocks=3)  # 8 usable positions
    assert paged.check(make_request(8, max_tokens=1)) is None
    assert paged.check(make_request(5, max_tokens=4)) is None
    assert "needs 9 positions, the pool has 8" in paged.check(make_request(5, max_tokens=5))


def test_paged_says_how_a_request_could_fit():
    paged, _ = make(block_size=16, num_blocks=257, max_context=8192)
    assert paged.check(make_request(5000)) == (
        "A prompt of 5,000 tokens exceeds the pool of 4,096 positions; "
        "raise num_blocks or shorten it."
    )
    assert "lower max_tokens" in paged.check(make_request(4000, max_tokens=1000))


# Contiguous.


@pytest.mark.parametrize(
    "name,table_blocks,region_blocks",
    [
        ("contiguous_max", 16, 16),  # the context: 64 tokens
        ("contiguous_pow2", 7, 8),  # 10 + 16 tokens
        ("contiguous_oracle", 5, 8),  # 10 + 9 tokens
    ],
)
def test_contiguous_takes_the_whole_region_at_once(name, table_blocks, region_blocks):
    contiguous, tables = make(name, num_blocks=33)
    row = tables.acquire()
    assert contiguous.admit(row, make_request(10, max_tokens=9), keep_free=30) == 0
    blocks = tables.blocks(0, row)
    assert blocks == list(range(blocks[0], blocks[0] + table_blocks))
    assert contiguous.usage(0).num_free == 32 - region_blocks
    assert contiguous.extend(row, 18)
    assert tables.blocks(0, row) == blocks
    contiguous.release(row)
    assert contiguous.usage(0).num_free == 32
    assert not tables.block_tables[0].any()


def test_contiguous_refuses_without_a_run_that_is_long_enough():
    contiguous, tables = make("contiguous_oracle", num_blocks=17)
    rows = [tables.acquire() for _ in range(5)]
    for row in rows[:4]:  # four regions of 4 blocks fill the pool
        assert contiguous.admit(row, make_request(10, max_tokens=5), keep_free=0) == 0
    starts = sorted((tables.blocks(0, row)[0], row) for row in rows[:4])
    contiguous.release(starts[1][1])
    contiguous.release(starts[2][1])
    assert contiguous.usage(0).num_free == 8  # but the two neighbours are no buddies
    refused = make_request(20, max_tokens=10)
    assert contiguous.admit(starts[1][1], refused, keep_free=0) is None
    assert contiguous.usage(0).num_free == 8


def test_contiguous_says_why_a_request_can_never_fit():
    contiguous, _ = make("contiguous_max", num_blocks=12)
    message = contiguous.check(make_request(3, max_tokens=1))
    assert "reserves 64 positions" in message
    assert "16 blocks of 4; the longest in a pool of 11 has 8" in message
    assert "Raise num_blocks" in message


@pytest.mark.parametrize(
    "sampling", [{"ignore_eos": False}, {"stop": ("x",)}, {"stop_token_ids": (3,)}]
)
def test_oracle_must_know_the_length(sampling):
    oracle, _ = make("contiguous_oracle")
    assert "ignore_eos=True" in oracle.check(make_request(3, **sampling))
    pow2, _ = make("contiguous_pow2")
    assert pow2.check(make_request(3, **sampling)) is None


# The buddy arena.


def test_chunks_split_keeping_the_low_half_and_join_again():
    arena = BuddyArena(16, largest=16)
    starts = [arena.allocate(4), arena.allocate(2), arena.allocate(2)]
    assert starts == [0, 4, 6]
    assert sorted(arena.free_chunks()) == [(8, 8)]
    for start in starts:
        arena.free(start)
    assert list(arena.free_chunks()) == [(0, 16)]


def test_chunks_do_not_join_beyond_the_largest():
    arena = BuddyArena(16, largest=8)
    arena.free(arena.allocate(8))
    assert sorted(arena.free_chunks()) == [(0, 8), (8, 8)]


def test_freeing_a_chunk_twice_raises():
    arena = BuddyArena(8, largest=8)
    start = arena.allocate(2)
    arena.free(start)
    with pytest.raises(ValueError, match="freed twice"):
        arena.free(start)


@given(st.integers(1, 200), st.integers(0, 6), st.integers(0, 5), st.data())
def test_chunks_always_tile_the_arena(num_units, largest_order, seed, data):
    largest = 1 << largest_order
    arena = BuddyArena(num_units, largest, shuffle_seed=seed or None)
    held = []
    for _ in range(data.draw(st.integers(0, 40))):
        if held and data.draw(st.booleans()):
            arena.free(held.pop(data.draw(st.integers(0, len(held) - 1))))
        else:
            size = 1 << data.draw(st.integers(0, largest_order))
            start = arena.allocate(size)
            if start is not None:
                held.append(start)
        chunks = sorted([*arena.free_chunks(), *arena.given_chunks()])
        assert [start for start, _ in chunks] == [
            sum(size for _, size in chunks[:index]) for index in range(len(chunks))
        ]
        assert sum(size for _, size in chunks) == num_units
        assert sum(size for _, size in arena.free_chunks()) == arena.num_free
    for start in held:
        arena.free(start)
    assert sorted(arena.free_chunks()) == carve(num_units, largest)


@pytest.mark.parametrize("count,power", [(1, 1), (2, 2), (3, 4), (128, 128), (129, 256)])
def test_next_power_of_two(count, power):
    assert next_power_of_two(count) == power


# Several cache groups.


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_groups_hold_the_same_positions_in_blocks_of_their_own(allocator):
    """Under pressure, with preemption: every step passes the invariants of each group."""
    engine = make_engine(
        allocator=allocator,
        num_groups=2,
        num_blocks=33,
        shuffle_seed=1,
        max_num_seqs=4,
        max_num_batched_tokens=16,
        preempt_every=3,
    )
    for length in (30, 5, 17, 9, 22):
        request = make_request(length, max_tokens=12)
        engine.add(request.prompt_ids, request.sampling)
    tables, differ = engine.scheduler.tables, False
    while engine.scheduler.has_unfinished:
        metrics = engine.step().metrics
        if metrics is None:
            continue
        first, second = metrics.partitions
        assert first == second
        first_table, second_table = tables.block_tables
        differ |= bool((first_table != second_table).any())
        assert ((first_table > 0) == (second_table > 0)).all()
    assert differ == (allocator == "paged")
    assert engine.scheduler.allocator.usage(0).num_free == 32

"""Blocks with several owners: forks, prefixes, windows."""

import numpy as np

from paxkv.allocators import make_allocator
from paxkv.config import CacheConfig
from paxkv.moves import CopyBlock
from paxkv.sequence_tables import SequenceTables
from tests.fakes import make_request


def make(allocator="paged", *, num_blocks=17, windows=(None,), **settings):
    """Blocks of 4 tokens, contexts of 64, 8 rows."""
    tables = SequenceTables(8, 64, (16,) * len(windows))
    config = CacheConfig(block_size=4, allocator=allocator, **settings)
    made = make_allocator(
        config, num_blocks=num_blocks, tables=tables, max_context=64, windows=windows
    )
    return made, tables


def started(paged, tables, request, num_tokens=None):
    """A row with room for the request's known tokens, of which all are computed."""
    row = tables.acquire()
    num_cached = paged.admit(row, request, keep_free=0)
    tables.write_known(row, request.prompt_ids, request.output_ids)
    tables.num_computed[row] = num_cached
    assert paged.extend(row, num_tokens or request.num_tokens)
    tables.num_computed[row] = num_tokens or request.num_tokens
    paged.committed(np.asarray([row]))
    return row, num_cached


def test_a_fork_shares_all_blocks_and_the_first_to_write_copies_the_last():
    paged, tables = make()
    request = make_request(6)
    row, _ = started(paged, tables, request)
    child = tables.acquire()
    tables.fork(row, child)
    assert paged.fork(row, child, request)
    assert tables.blocks(0, child) == tables.blocks(0, row) == [1, 2]
    assert paged.pools[0].refcounts[1:3] == [2, 2]
    assert paged.num_freed_by([row]) == 0
    assert paged.num_freed_by([row, child]) == 2
    assert paged.shares_tails
    assert paged.journal.take_moves() == ()
    assert paged.extend(row, 7)  # position 6 is in the second block
    assert tables.blocks(0, row) == [1, 3]
    assert paged.journal.take_moves() == (CopyBlock(group=0, src=2, dst=3),)
    assert paged.extend(child, 7)  # alone with its last block by now
    assert tables.blocks(0, child) == [1, 2]
    assert paged.journal.take_moves() == ()
    paged.release(row)
    assert tables.blocks(0, child) == [1, 2]
    paged.release(child)
    assert paged.usage(0).num_free == 16


def test_a_fork_at_the_end_of_a_block_copies_nothing():
    paged, tables = make()
    request = make_request(8)
    row, _ = started(paged, tables, request)
    child = tables.acquire()
    tables.fork(row, child)
    assert paged.fork(row, child, request)
    assert paged.extend(row, 9)
    assert paged.extend(child, 9)
    assert [tables.blocks(0, one) for one in (row, child)] == [[1, 2, 3], [1, 2, 4]]
    assert paged.journal.take_moves() == ()


def test_a_copy_needs_room_or_nothing_happens():
    paged, tables = make(num_blocks=3)
    request = make_request(6)
    row, _ = started(paged, tables, request)
    child = tables.acquire()
    tables.fork(row, child)
    assert paged.fork(row, child, request)
    assert not paged.extend(row, 7)
    assert tables.blocks(0, row) == [1, 2]
    assert paged.pools[0].refcounts[1:3] == [2, 2]
    assert paged.journal.take_moves() == ()


def test_contiguous_forks_copy_all_blocks_that_have_tokens():
    contiguous, tables = make("contiguous_oracle", num_blocks=17)
    request = make_request(6, max_tokens=9)
    row = tables.acquire()
    assert contiguous.admit(row, request, keep_free=0) == 0
    tables.num_computed[row] = 6
    child = tables.acquire()
    tables.fork(row, child)
    assert contiguous.fork(row, child, request)
    first, second = tables.blocks(0, row), tables.blocks(0, child)
    assert not set(first) & set(second)
    assert contiguous.journal.take_moves() == tuple(
        CopyBlock(group=0, src=src, dst=dst)
        for src, dst in zip(first[:2], second[:2], strict=True)
    )
    rows = [child]
    while (another := tables.acquire()) and contiguous.fork(row, another, request):
        rows.append(another)
    assert len(rows) == 3  # four regions of 4 blocks fill the pool
    assert tables.blocks(0, another) == []


def test_full_blocks_are_found_by_the_next_and_idle_ones_need_no_room():
    paged, tables = make(num_blocks=5, prefix_caching=True)
    row, num_cached = started(paged, tables, make_request(10))
    assert num_cached == 0
    assert paged.usage(0).num_free == 1
    paged.release(row)
    usage = paged.usage(0)
    assert (usage.num_free, usage.num_cached, usage.num_available) == (2, 2, 4)
    row, num_cached = started(paged, tables, make_request(16))
    assert num_cached == 8  # two full blocks of 4
    assert tables.blocks(0, row)[:2] == [1, 2]
    other = tables.acquire()
    assert paged.admit(other, make_request(9), keep_free=0) is None  # a block too many
    assert paged.admit(other, make_request(8), keep_free=0) == 7  # the last is computed
    assert tables.first_write[other] == 8  # and written nowhere
    assert paged.extend(other, 8)
    assert tables.blocks(0, other) == [1, 2]


def test_without_retain_what_nobody_else_used_does_not_stay_cached():
    paged, tables = make(num_blocks=9, prefix_caching=True)
    row, _ = started(paged, tables, make_request(8))
    paged.release(row, retain=False)
    assert paged.usage(0).num_free == 8
    row, _ = started(paged, tables, make_request(8))
    paged.release(row)
    row, num_cached = started(paged, tables, make_request(12))
    assert num_cached == 8
    paged.release(row, retain=False)
    assert paged.usage(0).num_cached == 2  # its own third block is gone


def test_two_that_computed_the_same_keep_one_copy():
    paged, tables = make(prefix_caching=True)
    rows = [tables.acquire() for _ in range(2)]
    for row in rows:
        request = make_request(8)
        assert paged.admit(row, request, keep_free=0) == 0
        tables.write_known(row, request.prompt_ids, [])
        assert paged.extend(row, 8)
        tables.num_computed[row] = 8
    assert tables.blocks(0, rows[1]) == [3, 4]
    paged.committed(np.asarray(rows))
    assert tables.blocks(0, rows[1]) == tables.blocks(0, rows[0]) == [1, 2]
    assert paged.usage(0).num_free == 14
    assert paged.usage(0).num_duplicates == 0


def test_without_deduplication_both_stay_and_are_counted():
    paged, tables = make(prefix_caching=True, deduplicate=False)
    rows = [tables.acquire() for _ in range(2)]
    for row in rows:
        request = make_request(8)
        assert paged.admit(row, request, keep_free=0) == 0
        tables.write_known(row, request.prompt_ids, [])
        assert paged.extend(row, 8)
        tables.num_computed[row] = 8
    paged.committed(np.asarray(rows))
    assert tables.blocks(0, rows[1]) == [3, 4]
    assert paged.usage(0).num_duplicates == 2
    paged.release(rows[1])
    assert paged.usage(0).num_duplicates == 0
    assert paged.usage(0).num_free == 14


def test_a_part_of_a_block_is_copied_where_tokens_are_shared():
    paged, tables = make(prefix_caching=True, granularity="token")
    row, _ = started(paged, tables, make_request((1, 2, 3, 4, 5, 6, 7, 8, 9)))
    paged.release(row)
    row, num_cached = started(paged, tables, make_request((1, 2, 3, 4, 5, 6, 0, 0, 0)))
    assert num_cached == 6
    first, own, *_ = tables.blocks(0, row)
    assert first == 1
    (move,) = paged.journal.take_moves()
    assert move == CopyBlock(group=0, src=2, dst=own)


def test_a_window_gives_up_the_blocks_behind_it():
    paged, tables = make(windows=(None, 6))
    row, _ = started(paged, tables, make_request(20), num_tokens=16)
    assert len(tables.blocks(1, row)) == 4
    assert paged.extend(row, 20)
    # position 16 sees 11..16, so blocks 0 and 1 are behind
    assert len(tables.blocks(0, row)) == 5
    assert tables.num_behind[1][row] == 2
    assert len(tables.blocks(1, row)) == 3
    assert paged.usage(1).num_free == 16 - 3
    paged.release(row)
    assert [paged.usage(group).num_free for group in range(2)] == [16, 16]

"""Regions of exact lengths: reserved, compacted, grown. For buddies: test_allocators.py."""

import numpy as np
import pytest

from paxkv.accounting import partition_pool
from paxkv.allocators import make_allocator
from paxkv.config import CacheConfig
from paxkv.events import EventKind
from paxkv.moves import CopyBlock, Poison
from paxkv.sequence_tables import SequenceTables
from tests.fakes import fake_completion, make_engine, make_request
from tests.serving import check_partition


class Regions:
    """An allocator of 4 tokens a block, and rows by the number of their request."""

    def __init__(self, name, *, usable, rows=6, **settings):
        self.tables = SequenceTables(rows, 64, (16,))
        config = CacheConfig(block_size=4, allocator=name, **settings)
        self.allocator = make_allocator(
            config, num_blocks=usable + 1, tables=self.tables, max_context=64
        )

    def admit(self, prompt, max_tokens, keep_free=0):
        """The row, with all of the prompt computed; None: no room."""
        row = self.tables.acquire()
        request = make_request(prompt, max_tokens, request_id=row)
        if self.allocator.admit(row, request, keep_free) is None:
            self.tables.release(row)
            return None
        self.tables.write_known(row, request.prompt_ids, ())
        assert self.allocator.extend(row, prompt)
        self.tables.num_computed[row] = prompt
        return row

    def release(self, row):
        self.allocator.release(row)
        self.tables.release(row)

    def blocks(self, row):
        return self.tables.blocks(0, row)

    def copies(self):
        moves = self.allocator.journal.take_moves()
        return [(move.src, move.dst) for move in moves if isinstance(move, CopyBlock)]

    def partition(self, *rows, refused=False):
        rows = np.asarray(rows, np.int32)
        computed = self.tables.num_computed[rows]
        return partition_pool(
            self.allocator, self.tables, rows, computed, head_refused=refused, group=0
        )


@pytest.mark.parametrize("name", ["contiguous_first_fit", "contiguous_compact"])
def test_a_region_holds_the_prompt_and_all_that_may_follow(name):
    regions = Regions(name, usable=10)
    row = regions.admit(9, 8)  # 17 tokens: no power of two
    assert regions.blocks(row) == [1, 2, 3, 4, 5]
    assert regions.allocator.usage(0).num_free == 5
    partition = regions.partition(row)
    check_partition(partition, 40)
    assert (partition.token_states, partition.reserved, partition.tail) == (9, 8, 3)
    assert (partition.internal, partition.rounding, partition.free) == (0, 0, 20)


def test_first_fit_is_refused_where_gaps_are_short():
    """External fragmentation: 4 blocks are free, in two gaps."""
    regions = Regions("contiguous_first_fit", usable=8)
    rows = [regions.admit(5, 3) for _ in range(4)]
    regions.release(rows[0])
    regions.release(rows[2])
    assert regions.allocator.usage(0).num_free == 4
    assert regions.admit(9, 3) is None
    assert regions.copies() == []
    partition = regions.partition(rows[1], rows[3], refused=True)
    assert (partition.free, partition.unusable_free) == (16, 16)
    assert regions.admit(5, 3) is not None


def test_compaction_joins_the_gaps_and_counts_its_copies():
    regions = Regions("contiguous_compact", usable=8)
    rows = [regions.admit(5, 3) for _ in range(4)]
    regions.release(rows[0])
    regions.release(rows[2])
    coming = regions.admit(9, 3)
    assert regions.copies() == [(3, 1), (4, 2), (7, 3), (8, 4)]
    assert regions.allocator.journal.num_copied_blocks == 4
    assert [regions.blocks(row) for row in (rows[1], rows[3], coming)] == [
        [1, 2],
        [3, 4],
        [5, 6, 7],
    ]
    check_partition(regions.partition(rows[1], rows[3], coming), 32)


def test_compaction_copies_only_blocks_with_tokens():
    regions = Regions("contiguous_compact", usable=8)
    first, second = regions.admit(4, 4), regions.admit(2, 14)
    regions.release(first)
    assert regions.admit(8, 8) is not None
    assert regions.copies() == [(3, 1)]
    assert regions.blocks(second) == [1, 2, 3, 4]


def test_nothing_is_moved_for_who_finds_no_room_anyway():
    regions = Regions("contiguous_compact", usable=8)
    first = regions.admit(5, 3)
    regions.admit(5, 3)
    regions.release(first)
    assert regions.admit(20, 8) is None  # 7 blocks of 6
    assert regions.copies() == []


def test_a_growing_region_begins_with_the_prompt_and_doubles():
    regions = Regions("contiguous_grow", usable=12)
    first, second = regions.admit(6, 30), regions.admit(4, 30)
    assert (regions.blocks(first), regions.blocks(second)) == ([1, 2], [3])
    assert regions.allocator.extend(first, 8)
    assert regions.copies() == []
    assert regions.allocator.extend(first, 9)  # 4 blocks, which only the end has
    assert regions.copies() == [(2, 5), (1, 4)]
    assert regions.blocks(first) == [4, 5, 6, 7]
    partition = regions.partition(first, second)
    check_partition(partition, 48)
    assert (partition.token_states, partition.reserved) == (10, 10)


def test_a_region_grows_in_place_where_the_next_blocks_are_free():
    regions = Regions("contiguous_grow", usable=12)
    row = regions.admit(6, 30)
    assert regions.allocator.extend(row, 9)
    assert (regions.blocks(row), regions.copies()) == ([1, 2, 3, 4], [])


@pytest.mark.parametrize(
    ("place", "copies"),
    [
        ([4, 5, 6], [(4, 1), (5, 2), (6, 3)]),  # downwards: the first block first
        ([2, 3, 4], [(2, 1), (3, 2), (4, 3)]),
    ],
)
def test_alone_it_can_have_the_whole_pool(place, copies):
    """Its own region counts as free, so it may overlap with where it goes."""
    regions = Regions("contiguous_grow", usable=7)
    before = [regions.admit(4, 1) for _ in range(place[0] - 1)]
    row = regions.admit(12, 16)
    assert regions.blocks(row) == place
    for other in before:
        regions.release(other)
    assert regions.allocator.extend(row, 28)
    assert (regions.blocks(row), regions.copies()) == ([1, 2, 3, 4, 5, 6, 7], copies)


def test_upwards_the_last_block_is_copied_first():
    """A random gap may be above and overlap with the region that moves there."""
    for seed in range(20):
        regions = Regions("contiguous_grow", usable=9, shuffle_seed=seed)
        row = regions.admit(8, 20)
        before = regions.blocks(row)
        regions.tables.num_computed[row] = 8
        assert regions.allocator.extend(row, 9)
        after, copies = regions.blocks(row), regions.copies()
        content = dict(zip(before, "ab", strict=True))
        for src, dst in copies:
            content[dst] = content[src]
        assert [content[block] for block in after[:2]] == ["a", "b"]


def test_a_region_that_cannot_grow_stays_as_it_was():
    regions = Regions("contiguous_grow", usable=4)
    first, second = regions.admit(8, 8), regions.admit(8, 8)
    assert not regions.allocator.extend(first, 9)
    assert (regions.blocks(first), regions.blocks(second)) == ([1, 2], [3, 4])
    assert regions.copies() == []
    regions.release(second)
    assert regions.allocator.extend(first, 9)


def test_only_regions_that_grow_are_refused_for_blocks_to_keep_free():
    assert Regions("contiguous_grow", usable=6).admit(8, 8, keep_free=5) is None
    assert Regions("contiguous_grow", usable=6).admit(8, 8, keep_free=4) is not None
    assert Regions("contiguous_first_fit", usable=6).admit(8, 8, keep_free=6) is not None


@pytest.mark.parametrize(
    ("name", "positions"), [("contiguous_first_fit", 29), ("contiguous_grow", 28)]
)
def test_what_can_never_fit_is_refused_with_the_numbers(name, positions):
    """The last token is never an input, but a reservation has a place for it."""
    regions = Regions(name, usable=6)
    message = regions.allocator.check(make_request(20, 9))
    assert f"reserves {positions} positions under {name}" in message
    assert "a region of" in message and "a pool of 6 has 6" in message
    assert regions.allocator.check(make_request(20, 4)) is None


def test_poison_spares_what_was_copied_and_nothing_else():
    regions = Regions("contiguous_compact", usable=8, poison=True)
    rows = [regions.admit(5, 3) for _ in range(3)]
    regions.release(rows[0])
    regions.allocator.journal.take_moves()
    regions.admit(9, 7)
    poisoned, copied = set(), set()
    for move in regions.allocator.journal.take_moves():
        if isinstance(move, Poison):
            poisoned |= set(move.blocks)
            assert not copied & set(move.blocks) & {1, 2, 3, 4}
        elif isinstance(move, CopyBlock):
            copied.add(move.dst)
    assert copied == {1, 2, 3, 4}
    assert {5, 6, 7, 8} <= poisoned


@pytest.mark.parametrize("name", ["contiguous_compact", "contiguous_grow"])
@pytest.mark.parametrize("poison", [False, True])
@pytest.mark.parametrize("seed", [None, 3])
def test_what_is_moved_is_read_as_it_was(name, poison, seed):
    """Under pressure: tokens of an executor that reads its context back from the pool."""
    copies = []
    engine = make_engine(
        allocator=name,
        num_blocks=17,
        poison=poison,
        shuffle_seed=seed,
        max_num_batched_tokens=16,
        listener=lambda event: (
            copies.append(event) if event.kind is EventKind.COPY else None
        ),
    )
    tokens = {}
    for index in range(12):
        prompt = tuple(range(index * 10 + 1, index * 10 + 4 + 5 * (index % 4)))
        max_tokens = 3 + 7 * (index % 3)
        request = engine.add(prompt, make_request(1, max_tokens).sampling)
        tokens[request] = (prompt, max_tokens, [])
    while engine.has_unfinished:
        for update in engine.step().updates:
            tokens[update.request_id][2].extend(update.new_token_ids)
    for prompt, max_tokens, generated in tokens.values():
        assert tuple(generated) == fake_completion(prompt, max_tokens)
    assert copies
    assert engine.scheduler.allocator.usage(0).num_free == 16

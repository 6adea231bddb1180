"""The invariants of DESIGN §5 that the host can check, between two steps."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from paxkv.allocators.contiguous import FIRST_BLOCK, ContiguousAllocator
from paxkv.allocators.grouped import GroupedAllocator
from paxkv.allocators.paged import PagedAllocator
from paxkv.block_pool import NULL_BLOCK, BlockPool
from paxkv.prefix_cache import NO_SLOT, PrefixCache
from paxkv.sequence_tables import SequenceTables

if TYPE_CHECKING:
    import paxkv.scheduler


def check_invariants(scheduler: "paxkv.scheduler.Scheduler") -> None:
    """Checks requests, rows and blocks; the work grows with the size of the pool.

    Raises:
      AssertionError: an invariant does not hold; the message says which and where.
    """
    _check_requests(scheduler)
    rows, tables, allocator = scheduler.running.rows, scheduler.tables, scheduler.allocator
    _check_rows(rows, tables)
    is_waiting_for_mates = [
        one.candidates is not None for one in scheduler.running.requests
    ]
    has_work = tables.num_computed[rows] < tables.num_tokens[rows]
    assert (has_work != is_waiting_for_mates).all(), (
        "a running sequence has nothing left to compute, or a beam has candidates too early"
    )
    match allocator:
        case PagedAllocator():
            prefixes = allocator.prefixes
            pins = None if prefixes is None else prefixes.pins.owned
            in_tree = set() if prefixes is None else _check_tree(prefixes.cache)
            for group in range(len(allocator.pools)):
                _check_paged(rows, tables, allocator, group, pins, in_tree)
        case ContiguousAllocator():
            _check_contiguous(rows, tables, allocator, 0)
        case GroupedAllocator():
            for group, one in enumerate(allocator.groups):
                _check_contiguous(rows, tables, one, group)
    if not scheduler.has_unfinished:
        _check_drained(scheduler)


def _check_drained(scheduler: "paxkv.scheduler.Scheduler") -> None:
    allocator = scheduler.allocator
    for group in range(len(scheduler.tables.block_tables)):
        usage = allocator.usage(group)
        prefixes = allocator.prefixes
        pinned = 0 if prefixes is None else len(prefixes.pins.owned[group])
        assert usage.num_available + pinned == usage.num_blocks - 1, (
            f"all requests ended, but of {usage.num_blocks - 1} blocks only "
            f"{usage.num_free} are free, {usage.num_cached} cached and {pinned} pinned"
        )
    swapper = scheduler.running.swapper
    if swapper is not None:
        for group in range(len(scheduler.tables.block_tables)):
            kept = swapper.host.num_free(group) + swapper.host.num_cached(group)
            assert kept == swapper.host.num_slots, "a host slot leaked"


def _check_requests(scheduler: "paxkv.scheduler.Scheduler") -> None:
    """No request vanishes, both queues are in order of rank, rows hold what is known."""
    running, waiting = scheduler.running, scheduler.waiting
    roster = scheduler.roster
    assert len(roster) + roster.num_ended == roster.num_added, (
        f"{len(roster)} unfinished + {roster.num_ended} ended of {roster.num_added} added"
    )
    sequences = {id(one) for group in roster.groups for one in group.sequences}
    present = [id(one) for queue in (running.requests, waiting) for one in queue]
    assert sequences == set(present) and len(present) == len(sequences), (
        "a sequence is in no queue, in two, or in one after its end"
    )
    for queue in (running.requests, waiting):
        assert all(older.rank < newer.rank for older, newer in pairwise(queue)), (
            "requests are out of order"
        )
    for request, row in zip(running.requests, running.rows, strict=True):
        known = [*request.prompt_ids, *request.output_ids]
        assert scheduler.tables.tokens[row, : len(known)].tolist() == known, (
            f"row {row} does not hold the tokens of request {request.request_id}"
        )
        assert scheduler.tables.num_tokens[row] == len(known), f"num_tokens of row {row}"


def _check_rows(rows: np.ndarray, tables: SequenceTables) -> None:
    """Each row has one owner or is zero."""
    assert len(set(rows.tolist())) == len(rows), "two requests own one row"
    assert len(rows) + tables.num_free_rows == tables.num_rows, "a row leaked"
    unowned = np.ones(tables.num_rows, bool)
    unowned[rows] = False
    arrays = (tables.tokens, tables.num_tokens, tables.num_computed, *tables.block_tables)
    assert not any(array[unowned].any() for array in arrays), "an unowned row is not zero"
    groups = zip(tables.block_tables, tables.num_behind, tables.num_blocks, strict=True)
    for table, behind, counts in groups:
        index = np.arange(table.shape[1])
        named = (index >= behind[:, None]) & (index < counts[:, None])
        assert ((table != NULL_BLOCK) == named).all(), "a table and its length disagree"


def _check_paged(
    rows: np.ndarray,
    tables: SequenceTables,
    allocator: PagedAllocator,
    group: int,
    pins: "Sequence[Counter[int]] | None",
    in_tree: set[int],
) -> None:
    """Invariants 1 to 4."""
    table, num_blocks = tables.block_tables[group], tables.num_blocks[group]
    pool = allocator.pools[group]
    entries = table[table != NULL_BLOCK]
    owners = np.bincount(entries, minlength=pool.num_blocks)
    if pins is not None:
        for block, count in pins[group].items():
            owners[block] += count
    assert owners.tolist() == pool.refcounts, "a refcount is not the number of owners"
    _check_partition(pool, owners, group, in_tree)

    computed = tables.num_computed[rows]
    filled = np.maximum(computed, tables.first_write[rows])
    covering = -(-filled // allocator.block_size)
    assert (num_blocks[rows] == covering).all(), (
        f"{num_blocks[rows]} blocks in the tables, {covering} cover the computed tokens"
    )
    if not allocator.shares_tails:
        partly_filled = filled % allocator.block_size > 0
        written_next = table[rows, num_blocks[rows] - 1][partly_filled]
        assert (owners[written_next] == 1).all(), "a shared block would be written"


def _check_partition(
    pool: BlockPool, owners: np.ndarray, group: int, in_tree: set[int]
) -> None:
    """Each block is owned, idle with a key, or on the free list without one. `in_tree`:
    ids of the nodes that requests can find."""
    free = np.bincount(np.asarray(pool.free_blocks, int), minlength=pool.num_blocks)
    idle = np.zeros(pool.num_blocks, int)
    for block, node in enumerate(pool.node_of):
        if node is None:
            continue
        assert node.blocks[group] == block, f"block {block} and its node disagree"
        assert id(node) in in_tree, f"the node of block {block} has left the tree"
        assert node.is_idle[group] == (owners[block] == 0), f"idleness of block {block}"
        idle[block] = node.is_idle[group]
    ones = (owners > 0).astype(int) + free + idle
    assert ones[NULL_BLOCK] == 0, "the null block was given away"
    assert (ones[1:] == 1).all(), (
        f"blocks {np.flatnonzero(ones[1:] != 1) + 1} are not in exactly one of owned, idle "
        "and free"
    )
    assert pool.num_idle == idle.sum(), "the number of idle blocks"
    assert all(owners[block] for block in pool.duplicates), "a free block is a duplicate"


def _check_tree(cache: PrefixCache) -> set[int]:
    """Children are under their own keys, and a group without windows has no gaps. Returns
    the ids of all nodes."""
    in_tree = set()
    for root in cache.roots:
        for node in root.subtree():
            in_tree.add(id(node))
            for key, child in node.children.items():
                assert child.key == key and child.parent is node, "a child is lost"
                assert child.depth == node.depth + 1, "the depth of a node"
            if cache.by_token:
                keys = [key for key in node.children if not isinstance(key, tuple)]
                assert sorted(keys) == node.sorted_keys, "the order of the children"
            for group, windowed in enumerate(cache.windowed):
                count = sum(child.is_idle[group] for child in node.children.values())
                assert count == node.num_idle_children[group], "idle children"
                has_place = node.blocks[group] or node.host_slots[group] != NO_SLOT
                if node.depth and not windowed:
                    assert has_place, "a node that no request can hit"
    return in_tree


def _check_contiguous(
    rows: np.ndarray, tables: SequenceTables, allocator: ContiguousAllocator, group: int
) -> None:
    """Invariants 1 and 4: chunks tile the arena; each region is a row's, in one piece."""
    table, num_blocks = tables.block_tables[group], tables.num_blocks[group]
    arena, regions = allocator.arena, allocator.regions
    given = dict(arena.given_chunks())
    position = 0
    for start, size in sorted([*given.items(), *arena.free_chunks()]):
        assert start == position, f"units [{position}, {start}) overlap or are lost"
        if allocator.kind.is_buddy:
            assert start % size == 0, f"a chunk of {size} units starts at {start}"
        position = start + size
    assert position == allocator.num_blocks - FIRST_BLOCK, "the arena has lost its end"
    assert sum(given.values()) + arena.num_free == position, "num_free of the arena"

    held = {
        start: int(regions.num_blocks[row])
        for row in rows.tolist()
        for start in (int(table[row, 0]) - FIRST_BLOCK, *allocator.spare_starts(row))
    }
    assert held == given, f"rows hold the regions {held}, the arena gave {given}"
    for row in rows:
        blocks = table[row, : num_blocks[row]]
        assert (np.diff(blocks) == 1).all(), f"the region of row {row} has a gap"
    reserved = -(-regions.reserved_tokens[rows] // allocator.block_size)
    assert (num_blocks[rows] == reserved).all(), "a table does not cover its reservation"
    assert (num_blocks[rows] <= regions.num_blocks[rows]).all(), "a region is too short"

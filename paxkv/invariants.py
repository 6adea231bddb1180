"""The invariants of DESIGN §5 that the host can check, between two steps."""

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from paxkv.allocators import allocators_of_groups
from paxkv.allocators.contiguous import FIRST_BLOCK, ContiguousAllocator
from paxkv.allocators.paged import PagedAllocator
from paxkv.block_pool import NULL_BLOCK
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
    for group, one in enumerate(allocators_of_groups(allocator)):
        match one:
            case PagedAllocator():
                _check_paged(rows, tables, one, group)
            case ContiguousAllocator():
                _check_contiguous(rows, tables, one, group)
    if not scheduler.has_unfinished:
        assert allocator.num_free == allocator.num_blocks - 1, (
            f"all requests ended, but {allocator.num_free} of "
            f"{allocator.num_blocks - 1} blocks are free"
        )


def _check_requests(scheduler: "paxkv.scheduler.Scheduler") -> None:
    """No request vanishes, both queues are in order of age, rows hold what is known."""
    running, waiting = scheduler.running, scheduler.waiting
    assert len(running) + len(waiting) + scheduler.num_ended == scheduler.num_added, (
        f"{len(running)} running + {len(waiting)} waiting + {scheduler.num_ended} ended "
        f"of {scheduler.num_added} added"
    )
    for queue in (running.requests, waiting):
        assert all(older.order < newer.order for older, newer in pairwise(queue)), (
            "requests are out of order"
        )
    for request, row in zip(running.requests, running.rows, strict=True):
        known = [*request.prompt_ids, *request.output_ids]
        assert scheduler.tables.tokens[row, : len(known)].tolist() == known, (
            f"row {row} does not hold the tokens of request {request.request_id}"
        )
        assert scheduler.tables.num_tokens[row] == len(known), f"num_tokens of row {row}"


def _check_rows(rows: np.ndarray, tables: SequenceTables) -> None:
    """Each row has one owner or is zero; a running sequence has a token to compute."""
    assert len(set(rows.tolist())) == len(rows), "two requests own one row"
    assert len(rows) + tables.num_free_rows == tables.num_rows, "a row leaked"
    assert (tables.num_computed[rows] < tables.num_tokens[rows]).all(), (
        "a running sequence has nothing left to compute"
    )
    unowned = np.ones(tables.num_rows, bool)
    unowned[rows] = False
    arrays = (tables.tokens, tables.num_tokens, tables.num_computed, *tables.block_tables)
    assert not any(array[unowned].any() for array in arrays), "an unowned row is not zero"
    for table, counts in zip(tables.block_tables, tables.num_blocks, strict=True):
        named = np.arange(table.shape[1]) < counts[:, None]
        assert ((table != NULL_BLOCK) == named).all(), "a table and its length disagree"


def _check_paged(
    rows: np.ndarray, tables: SequenceTables, allocator: PagedAllocator, group: int
) -> None:
    """Invariants 1 to 4."""
    table, num_blocks = tables.block_tables[group], tables.num_blocks[group]
    pool = allocator.pool
    entries = table[table != NULL_BLOCK]
    owners = np.bincount(entries, minlength=pool.num_blocks)
    assert owners.tolist() == pool.refcounts, "a refcount is not the number of owners"
    free = np.bincount(np.asarray(pool.free_blocks, int), minlength=pool.num_blocks)
    expected_free = (owners == 0).astype(int)
    expected_free[NULL_BLOCK] = 0
    assert (free == expected_free).all(), "the free list is not the blocks without owners"

    computed = tables.num_computed[rows]
    covering = -(-computed // allocator.block_size)
    assert (num_blocks[rows] == covering).all(), (
        f"{num_blocks[rows]} blocks in the tables, {covering} cover the computed tokens"
    )
    partly_filled = computed % allocator.block_size > 0
    written_next = table[rows, num_blocks[rows] - 1][partly_filled]
    assert (owners[written_next] == 1).all(), "a shared block would be written"


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
        assert start % size == 0, f"a chunk of {size} units starts at {start}"
        position = start + size
    assert position == allocator.num_blocks - FIRST_BLOCK, "the arena has lost its end"
    assert sum(given.values()) + arena.num_free == position, "num_free of the arena"

    held = {int(table[row, 0]) - FIRST_BLOCK: int(regions.num_blocks[row]) for row in rows}
    assert held == given, f"rows hold the regions {held}, the arena gave {given}"
    for row in rows:
        blocks = table[row, : num_blocks[row]]
        assert (np.diff(blocks) == 1).all(), f"the region of row {row} has a gap"
    reserved = -(-regions.reserved_tokens[rows] // allocator.block_size)
    assert (num_blocks[rows] == reserved).all(), "a table does not cover its reservation"
    assert (num_blocks[rows] <= regions.num_blocks[rows]).all(), "a region is too short"

"""Sequences that wait on the host: their blocks go out, and come back as they were."""

from collections.abc import Sequence
from dataclasses import dataclass

from paxkv.allocators.paged import PagedAllocator
from paxkv.block_pool import NULL_BLOCK
from paxkv.events import EventKind
from paxkv.moves import SwapIn, SwapOut
from paxkv.sequence_tables import SequenceTables
from paxkv.tiers.host_tier import HostTier
from paxkv.types import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class SwappedSequence:
    """A row as it was. `host_slots[group]` has one slot per block, in order; sequences
    that shared a block share its slot."""

    num_computed: int
    first_write: int
    num_behind: tuple[int, ...]  # per group
    host_slots: tuple[tuple[int, ...], ...]


class Swapper:
    """Moves the blocks of whole requests between a paged pool and the host's slots."""

    def __init__(self, allocator: PagedAllocator, tables: SequenceTables, host: HostTier):
        self.host = host
        self._allocator = allocator
        self._tables = tables
        self._journal = allocator.journal

    def swap_out(self, rows: Sequence[int]) -> list[SwappedSequence] | None:
        """Frees the rows and their blocks, each copied once; None: the host is full, and
        the rows only gave back blocks for tokens that were planned."""
        tables, slot_of = self._tables, []
        for row in rows:
            self._allocator.give_back_unfilled(row)
        for group in range(len(self._allocator.pools)):
            blocks = dict.fromkeys(b for row in rows for b in tables.blocks(group, row))
            if not self.host.can_take(group, len(blocks)):
                return None
            slot_of.append(blocks)
        for group, blocks in enumerate(slot_of):
            slots = self.host.take(group, len(blocks))
            slot_of[group] = dict(zip(blocks, slots, strict=True))
            for block, slot in slot_of[group].items():
                self._journal.add(SwapOut(group=group, block=block, host_slot=slot))
            self._journal.emit(
                EventKind.SWAP_OUT,
                group=group,
                blocks=tuple(blocks),
                slots=tuple(slots),
                request_id=int(tables.request_ids[rows[0]]),
            )
        swapped = [
            SwappedSequence(
                num_computed=int(tables.num_computed[row]),
                first_write=int(tables.first_write[row]),
                num_behind=tuple(int(behind[row]) for behind in tables.num_behind),
                host_slots=tuple(
                    tuple(slot_of[group][block] for block in tables.blocks(group, row))
                    for group in range(len(slot_of))
                ),
            )
            for row in rows
        ]
        for row in rows:
            self._allocator.release(row)
            tables.release(row)
        return swapped

    def has_room(self, swapped: Sequence[SwappedSequence], keep_free: int) -> bool:
        """For rows, blocks, the next block of each sequence, and `keep_free` besides."""
        if len(swapped) > self._tables.num_free_rows:
            return False
        for group, pool in enumerate(self._allocator.pools):
            needed = len(_host_slots(group, swapped))
            needed += sum(self._needs_block(group, one) for one in swapped)
            needed += self._num_copies(group, swapped)
            if needed + keep_free > pool.num_available:
                return False
        return True

    def swap_in(
        self,
        requests: Sequence[Request],
        swapped: Sequence[SwappedSequence],
    ) -> list[int]:
        """Rows with blocks filled from the host, whose slots get free. `has_room` must
        hold."""
        tables = self._tables
        rows = [tables.acquire() for _ in swapped]
        for row, request, one in zip(rows, requests, swapped, strict=True):
            tables.request_ids[row] = request.request_id
            tables.write_known(row, request.prompt_array, request.output_ids)
            tables.num_computed[row] = one.num_computed
            tables.first_write[row] = one.first_write
        for group in range(len(self._allocator.pools)):
            self._fill(group, rows, requests, swapped)
        self.forget(swapped)
        for row, request in zip(rows, requests, strict=True):
            self._allocator.returned(row, request)
        return rows

    def is_damaged(self, swapped: Sequence[SwappedSequence]) -> bool:
        """The host has lost bytes of these: they must be computed again."""
        return any(
            self.host.is_corrupt(group, slot)
            for group in range(len(self._allocator.pools))
            for slot in _host_slots(group, swapped)
        )

    def _needs_block(self, group: int, one: SwappedSequence) -> bool:
        """The next token to compute opens a block."""
        num_blocks = one.num_behind[group] + len(one.host_slots[group])
        return one.num_computed >= num_blocks * self._allocator.block_size

    def _num_copies(self, group: int, swapped: Sequence[SwappedSequence]) -> int:
        """Of partly filled last blocks that several share: each but one copies it."""
        size = self._allocator.block_size
        tails = [
            one.host_slots[group][-1]
            for one in swapped
            if one.host_slots[group] and max(one.num_computed, one.first_write) % size
        ]
        return len(tails) - len(set(tails))

    def forget(self, swapped: Sequence[SwappedSequence]) -> None:
        """Gives the host's slots back."""
        for group in range(len(self._allocator.pools)):
            for slot in _host_slots(group, swapped):
                self.host.release(group, slot)

    def _fill(
        self,
        group: int,
        rows: Sequence[int],
        requests: Sequence[Request],
        swapped: Sequence[SwappedSequence],
    ) -> None:
        pool, owned = self._allocator.pools[group], set()
        slots = _host_slots(group, swapped)
        block_of = dict(zip(slots, pool.allocate(len(slots)), strict=True))
        for slot, block in block_of.items():
            self._journal.add(SwapIn(group=group, host_slot=slot, block=block))
        for row, request, one in zip(rows, requests, swapped, strict=True):
            blocks = [block_of[slot] for slot in one.host_slots[group]]
            behind = one.num_behind[group]
            self._tables.append(group, row, [NULL_BLOCK] * behind + blocks)
            self._tables.num_behind[group][row] = behind
            pool.share(again := [block for block in blocks if block in owned])
            new = [block for block in blocks if block not in owned]
            owned.update(new)
            for kind, some in ((EventKind.ALLOCATE, new), (EventKind.SHARE, again)):
                if some:
                    self._journal.emit(
                        kind, group=group, blocks=tuple(some), request_id=request.request_id
                    )
        self._journal.emit(
            EventKind.SWAP_IN,
            group=group,
            blocks=tuple(block_of.values()),
            slots=tuple(slots),
            request_id=requests[0].request_id,
        )


def _host_slots(group: int, swapped: Sequence[SwappedSequence]) -> list[int]:
    """Each once, in the order of the sequences."""
    return list(dict.fromkeys(slot for one in swapped for slot in one.host_slots[group]))

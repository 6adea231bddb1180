"""PagedAttention: blocks one at a time, as tokens come; nothing is reserved.

Sequences may share blocks: those of a prefix that the cache holds, and those of the
sequence that they were forked from. A shared block is never written: who would write to it
gets a copy first.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from paxkv.allocators.usage import GroupUsage
from paxkv.block_pool import NULL_BLOCK, BlockPool
from paxkv.events import EventKind
from paxkv.journal import Journal
from paxkv.sequence_tables import SequenceTables, most_blocks
from paxkv.types import Request

if TYPE_CHECKING:
    from paxkv.allocators.prefix_hit import Hit
    from paxkv.allocators.prefixes import PrefixSharing


class PagedAllocator:
    """Any free block serves any sequence, so only a last block's tail is wasted.

    One pool per cache group; a windowed group gives up the blocks that fall behind every
    window, so there a long sequence holds only the window and what a step adds.
    """

    def __init__(
        self,
        pools: Sequence[BlockPool],
        tables: SequenceTables,
        *,
        block_size: int,
        max_context: int,
        windows: Sequence[int | None] = (None,),
        max_new_tokens: int | None = None,
        prefixes: "PrefixSharing | None" = None,
        journal: Journal | None = None,
    ):
        """
        Args:
          windows: tokens that a position sees in each group; None: all.
          max_new_tokens: most tokens of a sequence in one step; None: no limit.
          prefixes: finds and registers shared prefixes; None: requests share nothing.
        """
        self.pools = tuple(pools)
        self.block_size = block_size
        self.windows = tuple(windows)
        self.prefixes = prefixes
        self.journal = journal or Journal()
        self._tables = tables
        self._max_context = max_context
        self._max_new_tokens = max_new_tokens or max_context
        # the row's last block may be shared: look before writing to it
        self._may_share_tail = np.zeros(tables.num_rows, bool)

    def usage(self, group: int) -> GroupUsage:
        pool = self.pools[group]
        return GroupUsage(
            num_blocks=pool.num_blocks,
            num_free=pool.num_free,
            num_cached=pool.num_idle,
            num_duplicates=len(pool.duplicates),
            regions=None,
        )

    def check(self, request: Request) -> str | None:
        """Alone in the pool a request must be able to finish.

        The last token it generates is never an input, so it needs no position. Beams must
        all find room at once; other samples of a request can run one after the other.
        """
        num_prompt = len(request.prompt_ids)
        positions = min(request.expected_tokens, self._max_context) - 1
        beams = request.sampling.num_beams
        for group, pool in enumerate(self.pools):
            usable = pool.num_blocks - 1
            shared = min(num_prompt // self.block_size, self._most_blocks(group, positions))
            own = self._most_blocks(group, positions) - shared
            if shared + max(beams, 1) * own <= usable:
                continue
            if self._most_blocks(group, num_prompt) > usable:
                return (
                    f"A prompt of {num_prompt:,} tokens exceeds the pool of "
                    f"{usable * self.block_size:,} positions; raise num_blocks or shorten "
                    "it."
                )
            if beams:
                return (
                    f"{beams} beams of {positions:,} positions need "
                    f"{shared + beams * own:,} blocks of {self.block_size}, of which they "
                    f"share {shared:,}; the pool has {usable:,}. Raise num_blocks, or "
                    "lower best_of, max_tokens or block_size."
                )
            return (
                f"A prompt of {num_prompt:,} tokens with max_tokens="
                f"{request.sampling.max_tokens:,} needs {positions:,} positions, the pool "
                f"has {usable * self.block_size:,}; raise num_blocks or lower max_tokens."
            )
        return None

    def blocks_needed(self, num_tokens: int) -> int:
        """Blocks of the first group that a sequence of so many tokens holds at most."""
        return self._most_blocks(0, num_tokens)

    def admit(self, row: int, request: Request, keep_free: int) -> int | None:
        """Shares what the cache has of the request's tokens, whose number it returns.

        None: not all known tokens would find room with `keep_free` blocks to spare; then
        nothing was taken.
        """
        if self.prefixes is None:
            fits = all(
                self._most_blocks(group, request.num_tokens)
                <= pool.num_available - keep_free
                for group, pool in enumerate(self.pools)
            )
            return 0 if fits else None
        hit = self.prefixes.find(request)
        if hit.part is not None and not self._has_room(request, hit, keep_free):
            hit = hit.without_part()
        if hit.disk and not self._has_room(request, hit, keep_free):
            hit = self.prefixes.find(request, on_disk=False)
        if not self._has_room(request, hit, keep_free):
            return None
        if self.prefixes.drop_damaged(hit):
            return self.admit(row, request, keep_free)
        return self.prefixes.take(row, request, hit)

    def _has_room(self, request: Request, hit: "Hit", keep_free: int) -> bool:
        """What is shared takes no room, unless it was idle."""
        for group, pool in enumerate(self.pools):
            shared = hit.device_blocks(group)
            # K/V from disk come whole, more than a window may need
            most = self._most_blocks(group, request.num_tokens)
            found = len(hit.path) - hit.first[group] + len(hit.disk)
            needed = max(most, found) - len(shared)
            read = shared if hit.part is None else [*shared, hit.part[0].blocks[group]]
            num_idle = sum(block > 0 and pool.refcounts[block] == 0 for block in read)
            if max(needed, 0) + num_idle > pool.num_available - keep_free:
                return False
        return True

    def grow(self, rows: np.ndarray, ends: np.ndarray) -> bool:
        """One more block for each of these rows, if that covers the positions up to `ends`.

        What most decode steps need, in a few calls for all rows. False: it takes more, or
        too few are free; nothing was taken.
        """
        tables, size, count = self._tables, self.block_size, len(rows)
        if self.journal.listener is not None or self.journal.poisons or any(self.windows):
            return False
        if self._may_share_tail[rows].any():
            return False
        held = [num_blocks[rows] for num_blocks in tables.num_blocks]
        for pool, has in zip(self.pools, held, strict=True):
            is_one = (has * size < ends) & (ends <= (has + 1) * size)
            if count > pool.num_available or not is_one.all():
                return False
        for group, (pool, has) in enumerate(zip(self.pools, held, strict=True)):
            tables.block_tables[group][rows, has] = pool.allocate(count)
            tables.num_blocks[group][rows] = has + 1
        return True

    def extend(self, row: int, num_tokens: int) -> bool:
        """Blocks up to position `num_tokens`, and one of its own for the first to write.

        False: too few are free, and nothing was taken.
        """
        tables, size = self._tables, self.block_size
        self._leave_behind(row)
        covering = -(-num_tokens // size)
        shared = self._shared_tail(row) if self._may_share_tail[row] else ()
        missing = []
        for group, pool in enumerate(self.pools):
            count = max(covering - int(tables.num_blocks[group][row]), 0)
            if count + (group in shared) > pool.num_available:
                return False
            missing.append(count)
        for group, count in enumerate(missing):
            if group in shared:
                self._copy_on_write(group, row)
            if count:
                blocks = self.pools[group].allocate(count)
                tables.append(group, row, blocks)
                self.journal.poison(group, blocks)
                if self.journal.listener is not None:
                    self._tell(EventKind.ALLOCATE, group, blocks, row)
        self._may_share_tail[row] = False
        return True

    def fork(self, row: int, child: int, request: Request) -> bool:
        """A new row shares all blocks of another; nothing is copied yet."""
        tables = self._tables
        for group, pool in enumerate(self.pools):
            behind = int(tables.num_behind[group][row])
            blocks = tables.blocks(group, row)
            pool.share(blocks)
            tables.append(group, child, [NULL_BLOCK] * behind + blocks)
            tables.num_behind[group][child] = behind
            self._tell(EventKind.SHARE, group, blocks, child)
        self._may_share_tail[[row, child]] = True
        if self.prefixes is not None:
            self.prefixes.fork(row, child, request)
        return True

    def committed(self, rows: np.ndarray) -> None:
        """A step has run: more tokens of these rows are in the cache, and all moves so far
        are done. Full blocks may be shared from now on."""
        if self.prefixes is None:
            return
        if self.prefixes.cache.host is not None:
            self.prefixes.cache.host.committed()
        self.prefixes.register(rows)

    def release(self, row: int, *, retain: bool = True) -> None:
        """Gives up the row's share in its blocks; without `retain`, what is then without
        an owner does not stay cached."""
        tip = self.prefixes.leave(row) if self.prefixes is not None else None
        for group in range(len(self.pools)):
            blocks = self._tables.blocks(group, row)
            self._tables.clear_blocks(group, row)  # no table may name a free block
            self._give_up(group, row, blocks)
        self._may_share_tail[row] = False
        if tip is not None and not retain and self.prefixes is not None:
            self.prefixes.forget(tip)

    def give_back_unfilled(self, row: int) -> None:
        """Frees blocks for tokens that were planned, where the row gives way instead."""
        tables = self._tables
        covering = -(-tables.num_filled(row) // self.block_size)
        for group in range(len(self.pools)):
            self._give_up(group, row, tables.cut(group, row, covering))

    def replace(self, group: int, row: int, index: int, block: int) -> None:
        """The row names another block, whose owner it has become."""
        table = self._tables.block_tables[group]
        own = int(table[row, index])
        table[row, index] = block  # before the free: no table may name a free block
        self._give_up(group, row, [own])

    def num_freed_by(self, rows: Sequence[int]) -> int:
        """Blocks that these rows alone own: what releasing them all would free."""
        count = 0
        for group, pool in enumerate(self.pools):
            owners = Counter(b for row in rows for b in self._tables.blocks(group, row))
            count += sum(pool.refcounts[block] == n for block, n in owners.items())
        return count

    def returned(self, row: int, request: Request) -> None:
        """A row has its blocks back from the host."""
        self._may_share_tail[row] = True
        if self.prefixes is not None:
            self.prefixes.restart(row, request)

    def set_now(self, now_s: float) -> None:
        """The time of planning, for retention."""
        if self.prefixes is not None:
            self.prefixes.cache.set_now(now_s)

    @property
    def shares_tails(self) -> bool:
        """A row may have to copy its last block before it writes to it."""
        return bool(self._may_share_tail.any())

    def _most_blocks(self, group: int, num_tokens: int) -> int:
        """Of a sequence of `num_tokens`."""
        new = min(self._max_new_tokens, num_tokens)
        return most_blocks(num_tokens, self.block_size, self.windows[group], new)

    def _leave_behind(self, row: int) -> None:
        """Frees the row's blocks that the next position to compute no longer sees."""
        tables = self._tables
        for group, window in enumerate(self.windows):
            if window is None:
                continue
            first_seen = max(int(tables.num_computed[row]) - window + 1, 0)
            behind = first_seen // self.block_size
            if behind > tables.num_behind[group][row]:
                self._give_up(group, row, tables.leave_behind(group, row, behind))

    def _shared_tail(self, row: int) -> list[int]:
        """Groups in which the next token to write falls into a block with two owners."""
        tables = self._tables
        index, offset = divmod(tables.num_filled(row), self.block_size)
        if offset == 0:
            return []
        return [
            group
            for group, pool in enumerate(self.pools)
            if pool.refcounts[tables.block_tables[group][row, index]] > 1
        ]

    def _copy_on_write(self, group: int, row: int) -> None:
        tables, pool = self._tables, self.pools[group]
        index = tables.num_filled(row) // self.block_size
        shared = int(tables.block_tables[group][row, index])
        (own,) = pool.allocate(1)
        self._tell(EventKind.ALLOCATE, group, [own], row)
        self.journal.copy(group, shared, own, int(tables.request_ids[row]))
        self.replace(group, row, index, own)

    def _give_up(self, group: int, row: int, blocks: list[int]) -> None:
        pool = self.pools[group]
        pool.free(blocks)
        self.journal.gave_up(group, pool, blocks, int(self._tables.request_ids[row]))

    def _tell(self, kind: EventKind, group: int, blocks: Sequence[int], row: int) -> None:
        self.journal.tell(kind, group, blocks, int(self._tables.request_ids[row]))

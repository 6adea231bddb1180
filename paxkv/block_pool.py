"""Fixed-size blocks and who counts on them. Mechanism only: no sequence, no policy."""

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paxkv.idle_blocks import IdleBlocks
    from paxkv.prefix_cache import CacheNode

NULL_BLOCK = 0  # padding is written there and unused table entries point there


class OutOfBlocks(Exception):
    """More blocks were asked for than are free or idle."""


class BlockPool:
    """Blocks [1, num_blocks), each free, owned (refcount ≥ 1) or idle.

    An idle block has no owner but a key, so that a later request can still hit it; it is
    given up when the free ones do not suffice. The free list is a stack: blocks that were
    used last are reused first.
    """

    def __init__(self, num_blocks: int, shuffle_seed: int | None = None):
        """All blocks are free, the lowest first, or shuffled by `shuffle_seed`."""
        if num_blocks < 2:
            raise ValueError(
                f"{num_blocks=}, but block {NULL_BLOCK} is the null block and a pool "
                "needs at least one more; raise num_blocks to ≥ 2."
            )
        self.num_blocks = num_blocks
        self.refcounts = [0] * num_blocks  # of the null block: always 0
        self.node_of: list[CacheNode | None] = [None] * num_blocks  # of those with a key
        self.idle: IdleBlocks | None = None  # set by a prefix cache
        self.duplicates: set[int] = set()  # owned; another block has the same key
        self._free = list(range(num_blocks - 1, NULL_BLOCK, -1))
        self._shuffle = None if shuffle_seed is None else random.Random(shuffle_seed)
        if self._shuffle is not None:
            self._shuffle.shuffle(self._free)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_idle(self) -> int:
        return 0 if self.idle is None else self.idle.num_idle

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can give."""
        return len(self._free) + self.num_idle

    @property
    def free_blocks(self) -> Sequence[int]:
        """In no order to rely on; a view, for checks."""
        return self._free

    def allocate(self, count: int) -> list[int]:
        """Takes `count` blocks, each with refcount 1: free ones, then idle ones.

        Raises:
          OutOfBlocks: too few are free or idle; none was taken.
        """
        free = self._free
        if count > len(free):
            if count > self.num_available:
                raise OutOfBlocks(
                    f"{count=} blocks asked, {len(free)} free and {self.num_idle} idle "
                    f"of {self.num_blocks}."
                )
            assert self.idle is not None
            self.idle.evict(count - len(free))
        if count == 1:
            blocks = [free.pop()]
        else:
            blocks = free[: -count - 1 : -1]
            del free[len(free) - count :]
        for block in blocks:
            self.refcounts[block] = 1
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """Adds an owner to each block, owned or idle; copies nothing.

        Of a path of the prefix cache, blocks nearer to the root come first.

        Raises:
          ValueError: one of them is free or the null block.
        """
        for block in blocks:
            count = self.refcounts[block] if 0 < block < self.num_blocks else 0
            if count == 0:
                node = self.node_of[block] if 0 < block < self.num_blocks else None
                if node is None or self.idle is None:
                    raise self._no_owner(block, "share")
                self.idle.take(node)
            self.refcounts[block] = count + 1

    def free(self, blocks: Sequence[int]) -> None:
        """Takes an owner from each block, last block first; those without one get free,
        or idle if they have a key.

        So the head of a sequence is on top of the stack, and an equal sequence that
        comes next gets the same blocks in the same order.

        Raises:
          ValueError: one of them is free already or the null block.
        """
        refcounts, node_of = self.refcounts, self.node_of
        kept = []
        for block in reversed(blocks):
            count = refcounts[block] if 0 < block < self.num_blocks else 0
            if count > 1:
                refcounts[block] = count - 1
                continue
            if count == 0:
                raise self._no_owner(block, "free")
            refcounts[block] = 0
            node = node_of[block]
            if node is None:
                self.put_back(block)
            else:
                kept.append(node)
        if kept and self.idle is not None:
            self.idle.add(kept)

    def put_back(self, block: int) -> None:
        """A block with neither owner nor key joins the free list."""
        self._free.append(block)
        if self.duplicates:
            self.duplicates.discard(block)
        if self._shuffle is not None:  # a random one of them is the next to go
            other = self._shuffle.randrange(len(self._free))
            self._free[-1], self._free[other] = self._free[other], self._free[-1]

    def _no_owner(self, block: int, action: str) -> ValueError:
        return ValueError(
            f"cannot {action} {block=}: it is the null block, outside of "
            f"[1, {self.num_blocks}), or has no owner (freed twice?)."
        )

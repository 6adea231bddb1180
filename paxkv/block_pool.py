"""Fixed-size blocks and who counts on them. Mechanism only: no sequence, no policy."""

import random
from collections.abc import Sequence

NULL_BLOCK = 0  # padding is written there and unused table entries point there


class OutOfBlocks(Exception):
    """More blocks were asked for than are free."""


class BlockPool:
    """Blocks [1, num_blocks), each free (refcount 0) or owned (refcount ≥ 1).

    The free list is a stack: blocks that were used last are reused first.
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
        self._free = list(range(num_blocks - 1, NULL_BLOCK, -1))
        if shuffle_seed is not None:
            random.Random(shuffle_seed).shuffle(self._free)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def free_blocks(self) -> Sequence[int]:
        """In no order to rely on; a view, for checks."""
        return self._free

    def allocate(self, count: int) -> list[int]:
        """Takes `count` free blocks, each with refcount 1.

        Raises:
          OutOfBlocks: too few are free; none was taken.
        """
        if count > len(self._free):
            raise OutOfBlocks(
                f"{count=} blocks asked, {len(self._free)} free of {self.num_blocks}."
            )
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self.refcounts[block] = 1
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """Adds an owner to each block; copies nothing.

        Raises:
          ValueError: one of them is free or the null block.
        """
        for block in blocks:
            self._require_owned(block, "share")
            self.refcounts[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Takes an owner from each block, last block first; frees those without one.

        So the head of a sequence is on top of the stack, and an equal sequence that
        comes next gets the same blocks in the same order.

        Raises:
          ValueError: one of them is free already or the null block.
        """
        for block in reversed(blocks):
            self._require_owned(block, "free")
            self.refcounts[block] -= 1
            if self.refcounts[block] == 0:
                self._free.append(block)

    def _require_owned(self, block: int, action: str) -> None:
        if not NULL_BLOCK < block < self.num_blocks or self.refcounts[block] == 0:
            raise ValueError(
                f"cannot {action} {block=}: it is the null block, outside of "
                f"[1, {self.num_blocks}), or has no owner (freed twice?)."
            )

"""Several cache groups with a contiguous region for each sequence in every one."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paxkv.allocators.contiguous import ContiguousAllocator
from paxkv.allocators.usage import GroupUsage
from paxkv.journal import Journal
from paxkv.types import Request


class GroupedAllocator:
    """Asks each group's allocator the same; as their pools are equal, they agree.

    A row then has equally many blocks in every group.
    """

    prefixes = None
    shares_tails = False

    def __init__(self, groups: Sequence[ContiguousAllocator], journal: Journal):
        self.groups = tuple(groups)
        self.journal = journal
        sizes = {(group.num_blocks, group.block_size) for group in groups}
        assert len(sizes) == 1, f"groups of unequal pools {sizes}"
        ((_, self.block_size),) = sizes

    def usage(self, group: int) -> GroupUsage:
        return self.groups[group].usage(group)

    def blocks_needed(self, num_tokens: int) -> int:
        return self.groups[0].blocks_needed(num_tokens)

    def check(self, request: Request) -> str | None:
        """What hinders one group hinders all."""
        return self.groups[0].check(request)

    def admit(self, row: int, request: Request, keep_free: int) -> int | None:
        return self._all(lambda group: group.admit(row, request, keep_free))

    def grow(self, rows: np.ndarray, ends: np.ndarray) -> bool:
        return False

    def extend(self, row: int, num_tokens: int) -> bool:
        return self._all(lambda group: group.extend(row, num_tokens))

    def fork(self, row: int, child: int, request: Request) -> bool:
        return self._all(lambda group: group.fork(row, child, request))

    def committed(self, rows: np.ndarray) -> None:
        """Nothing is shared."""

    def set_now(self, now_s: float) -> None:
        """Nothing is retained."""

    def num_freed_by(self, rows: Sequence[int]) -> int:
        return sum(group.num_freed_by(rows) for group in self.groups)

    def release(self, row: int, *, retain: bool = True) -> None:
        for group in self.groups:
            group.release(row, retain=retain)

    def _all(self, ask: Callable[[ContiguousAllocator], Any]) -> Any:
        answers = {ask(group) for group in self.groups}
        assert len(answers) == 1, "groups of equal pools disagree"
        return answers.pop()

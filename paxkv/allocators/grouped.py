"""Several cache groups that all hold every position, each in blocks of its own."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from paxkv.allocators.contiguous import Regions
from paxkv.types import Request

if TYPE_CHECKING:
    from paxkv.allocators import Allocator


class GroupedAllocator:
    """Asks each group's allocator the same; as their pools are equal, they agree.

    A row then has equally many blocks in every group, so what is counted in blocks or
    positions is that of the first.
    """

    def __init__(self, groups: Sequence["Allocator"]):
        self.groups = tuple(groups)
        sizes = {(group.num_blocks, group.block_size) for group in groups}
        assert len(sizes) == 1, f"groups of unequal pools {sizes}"
        ((self.num_blocks, self.block_size),) = sizes

    @property
    def num_free(self) -> int:
        return self.groups[0].num_free

    @property
    def regions(self) -> Regions | None:
        return self.groups[0].regions

    def check(self, request: Request) -> str | None:
        """What hinders one group hinders all."""
        return self.groups[0].check(request)

    def admit(self, row: int, request: Request, num_tokens: int, keep_free: int) -> bool:
        return self._all(lambda group: group.admit(row, request, num_tokens, keep_free))

    def extend(self, row: int, num_tokens: int) -> bool:
        return self._all(lambda group: group.extend(row, num_tokens))

    def release(self, row: int) -> None:
        for group in self.groups:
            group.release(row)

    def _all(self, ask: Callable[["Allocator"], bool]) -> bool:
        answers = {ask(group) for group in self.groups}
        assert len(answers) == 1, "groups of equal pools disagree"
        return answers.pop()

"""Who gets which blocks: the seam at which paged and contiguous caches are compared."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol, runtime_checkable

from paxkv.allocators.contiguous import ContiguousAllocator, Regions
from paxkv.allocators.grouped import GroupedAllocator
from paxkv.allocators.paged import PagedAllocator
from paxkv.block_pool import BlockPool
from paxkv.config import CacheConfig
from paxkv.sequence_tables import SequenceTables
from paxkv.types import Request


@runtime_checkable
class Allocator(Protocol):
    """Gives blocks to table rows and writes their tables.

    `num_blocks` counts the null block, `num_free` only blocks. `regions` is None unless
    rows hold more than the blocks in their tables.
    """

    num_blocks: int
    block_size: int

    @property
    def num_free(self) -> int: ...

    @property
    def regions(self) -> Regions | None: ...

    def check(self, request: Request) -> str | None:
        """A sentence for its user, if even an empty pool could not serve the request."""

    def admit(self, row: int, request: Request, num_tokens: int, keep_free: int) -> bool:
        """Gives an empty row room for `num_tokens`; False: not now, nothing was taken.

        The request's known tokens must all find room, with `keep_free` blocks to spare.
        """

    def extend(self, row: int, num_tokens: int) -> bool:
        """Makes room for `num_tokens` in all; False: not now, nothing was taken."""

    def release(self, row: int) -> None:
        """Takes back all that the row holds."""


def _paged(
    tables: SequenceTables,
    *,
    num_blocks: int,
    block_size: int,
    max_context: int,
    shuffle_seed: int | None,
    group: int,
) -> PagedAllocator:
    return PagedAllocator(
        # groups in different orders, so that a table of the wrong group shows
        BlockPool(num_blocks, None if shuffle_seed is None else shuffle_seed + group),
        tables,
        block_size=block_size,
        max_context=max_context,
        group=group,
    )


ALLOCATORS: Mapping[str, Callable[..., Allocator]] = {
    "paged": _paged,
    "contiguous_max": partial(ContiguousAllocator, "max"),
    "contiguous_pow2": partial(ContiguousAllocator, "pow2"),
    "contiguous_oracle": partial(ContiguousAllocator, "oracle"),
}


def make_allocator(
    config: CacheConfig, *, num_blocks: int, tables: SequenceTables, max_context: int
) -> Allocator:
    """The allocator that `config` names, over `num_blocks` free blocks per cache group."""
    groups = [
        ALLOCATORS[config.allocator](
            tables,
            num_blocks=num_blocks,
            block_size=config.block_size,
            max_context=max_context,
            shuffle_seed=config.shuffle_seed,
            group=group,
        )
        for group in range(len(tables.block_tables))
    ]
    return groups[0] if len(groups) == 1 else GroupedAllocator(groups)


def allocators_of_groups(allocator: Allocator) -> tuple[Allocator, ...]:
    """One per cache group."""
    return allocator.groups if isinstance(allocator, GroupedAllocator) else (allocator,)

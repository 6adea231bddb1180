"""Who gets which blocks: the seam at which paged and contiguous caches are compared."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int32

from paxkv.allocators.contiguous import KINDS, ContiguousAllocator
from paxkv.allocators.grouped import GroupedAllocator
from paxkv.allocators.paged import PagedAllocator
from paxkv.allocators.prefixes import PrefixSharing
from paxkv.allocators.usage import GroupUsage
from paxkv.block_pool import BlockPool
from paxkv.cache_keys import Part
from paxkv.config import CacheConfig
from paxkv.journal import Journal
from paxkv.policies.eviction import EVICTION_POLICIES
from paxkv.policies.naming import policy_named
from paxkv.prefix_cache import PrefixCache
from paxkv.sequence_tables import SequenceTables
from paxkv.tiers.disk_store import DiskStore
from paxkv.tiers.host_tier import HostTier
from paxkv.types import Request


@runtime_checkable
class Allocator(Protocol):
    """Gives blocks to table rows and writes their tables, for all cache groups at once."""

    block_size: int
    journal: Journal

    @property
    def prefixes(self) -> PrefixSharing | None:
        """None: requests share nothing."""

    @property
    def shares_tails(self) -> bool:
        """A row may have to copy its last block before it writes to it."""

    def usage(self, group: int) -> GroupUsage:
        """The pool of a group in numbers."""

    def blocks_needed(self, num_tokens: int) -> int:
        """Blocks of the first group that a sequence of so many tokens holds at most."""

    def check(self, request: Request) -> str | None:
        """A sentence for its user, if even an empty pool could not serve the request."""

    def admit(self, row: int, request: Request, keep_free: int) -> int | None:
        """Opens an empty row for a request; how many of its tokens the cache has.

        None: its known tokens would not all find room with `keep_free` blocks to spare;
        nothing was taken. Else `extend` has room for all of them.
        """

    def extend(self, row: int, num_tokens: int) -> bool:
        """Makes room for `num_tokens` in all; False: not now, nothing was taken."""

    def grow(self, rows: Int32[np.ndarray, "n"], ends: Int32[np.ndarray, "n"]) -> bool:
        """`extend` of many rows at once, where each needs one block more, as decode steps
        do; False: they do not, or it is not offered, and nothing was taken."""

    def fork(self, row: int, child: int, request: Request) -> bool:
        """Gives row `child`, of `request`, what `row` has; False: no room."""

    def committed(self, rows: np.ndarray) -> None:
        """A step of these rows, and all moves so far, have been carried out."""

    def set_now(self, now_s: float) -> None:
        """The time of planning."""

    def num_freed_by(self, rows: Sequence[int]) -> int:
        """Blocks that releasing these rows together would free."""

    def release(self, row: int, *, retain: bool = True) -> None:
        """Takes back all that the row holds; without `retain` nothing stays cached."""


def make_allocator(
    config: CacheConfig,
    *,
    num_blocks: int | Sequence[int],
    tables: SequenceTables,
    max_context: int,
    windows: Sequence[int | None] = (None,),
    max_new_tokens: int | None = None,
    model_key: tuple[Part, ...] = (),
    journal: Journal | None = None,
    host: HostTier | None = None,
    disk: DiskStore | None = None,
) -> Allocator:
    """The allocator that `config` names, over free pools.

    Args:
      num_blocks: of every cache group, or one number for all.
      windows: per group, tokens that a position sees; None: all.
      max_new_tokens: most tokens of a sequence in one step.
      model_key: what of the engine K/V depends on.
    """
    journal = journal or Journal(poisons=config.poison)
    num_groups = len(tables.block_tables)
    sizes = [num_blocks] * num_groups if isinstance(num_blocks, int) else list(num_blocks)
    windows = list(windows) if len(windows) == num_groups else [None] * num_groups
    if config.allocator != "paged":
        groups = [
            ContiguousAllocator(
                config.allocator,
                tables,
                num_blocks=size,
                block_size=config.block_size,
                max_context=max_context,
                shuffle_seed=config.shuffle_seed,
                group=group,
                journal=journal,
            )
            for group, size in enumerate(sizes)
        ]
        return groups[0] if num_groups == 1 else GroupedAllocator(groups, journal)
    seed = config.shuffle_seed
    pools = [
        # groups in different orders, so that a table of the wrong group shows
        BlockPool(size, None if seed is None else seed + group)
        for group, size in enumerate(sizes)
    ]
    prefixes = None
    if config.prefix_caching:
        eviction = policy_named(config.eviction, EVICTION_POLICIES, "eviction policy")
        cache = PrefixCache(
            pools,
            eviction(),
            block_size=config.block_size,
            windowed=[window is not None for window in windows],
            by_token=config.granularity == "token",
            host=host,
            journal=journal,
        )
        prefixes = PrefixSharing(
            cache,
            tables,
            journal,
            windows=windows,
            model_key=model_key,
            deduplicate=config.deduplicate,
            force_miss=config.force_miss,
            disk=disk,
        )
    return PagedAllocator(
        pools,
        tables,
        block_size=config.block_size,
        max_context=max_context,
        windows=windows,
        max_new_tokens=max_new_tokens,
        prefixes=prefixes,
        journal=journal,
    )


ALLOCATORS = ("paged", *KINDS)

"""One contiguous region per request, reserved whole at admission (Orca's policies).

The caches that PagedAttention replaced, under the same scheduler and kernels: a region is
a table of consecutive blocks. Regions come from a buddy arena over blocks [1, num_blocks)
(EVAL §2.1); they neither grow nor shrink.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from paxkv.allocators.buddy import BuddyArena, next_power_of_two
from paxkv.allocators.usage import GroupUsage, Regions
from paxkv.journal import Journal
from paxkv.sequence_tables import SequenceTables
from paxkv.types import Request

FIRST_BLOCK = 1  # unit 0 of the arena; block 0 is the null block

# Output tokens to reserve for, given the true (or largest) number and the context.
Reservation = Callable[[int, int], int]

RESERVATIONS: Mapping[str, Reservation] = {
    "max": lambda output_tokens, max_context: max_context,
    "pow2": lambda output_tokens, max_context: next_power_of_two(output_tokens),
    "oracle": lambda output_tokens, max_context: output_tokens,
}


class ContiguousAllocator:
    """Regions of ceil(reserved tokens / block size) blocks, rounded to a power of two.

    The table names only the blocks of the reservation; the rest is the rounding's.
    """

    def __init__(
        self,
        reservation: str,
        tables: SequenceTables,
        *,
        num_blocks: int,
        block_size: int,
        max_context: int,
        shuffle_seed: int | None = None,
        group: int = 0,
        journal: Journal | None = None,
    ):
        self.journal = journal or Journal()
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.reservation = reservation
        largest = next_power_of_two(-(-max_context // block_size))
        self.arena = BuddyArena(num_blocks - FIRST_BLOCK, largest, shuffle_seed)
        self.regions = Regions(
            num_blocks=np.zeros(tables.num_rows, np.int32),
            reserved_tokens=np.zeros(tables.num_rows, np.int32),
            final_tokens=np.zeros(tables.num_rows, np.int32),
        )
        self._tables = tables
        self._max_context = max_context
        self._group = group

    prefixes = None  # a region belongs to one sequence
    shares_tails = False

    def usage(self, group: int) -> GroupUsage:
        """`group` is for the interface: this is the pool of one."""
        del group
        return GroupUsage(
            num_blocks=self.num_blocks,
            num_free=self.arena.num_free,
            num_cached=0,
            num_duplicates=0,
            regions=self.regions,
        )

    def blocks_needed(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def reserved_tokens(self, request: Request) -> int:
        """Prompt + estimated output, at most the context."""
        estimate = RESERVATIONS[self.reservation]
        output_tokens = estimate(request.sampling.max_tokens, self._max_context)
        return min(len(request.prompt_ids) + output_tokens, self._max_context)

    def check(self, request: Request) -> str | None:
        """An empty arena must have a chunk for it, and the oracle must know its length."""
        sampling = request.sampling
        if self.reservation == "oracle" and not (
            sampling.ignore_eos and not sampling.stop and not sampling.stop_token_ids
        ):
            return (
                "The allocator contiguous_oracle reserves the true output length, which "
                f"is known only with ignore_eos=True (here {sampling.ignore_eos}) and "
                "without stop strings or stop tokens; set so, or use contiguous_pow2."
            )
        if request.sampling.use_beam_search:
            return (
                "Beams share blocks, which the contiguous allocators cannot; use "
                "allocator='paged'."
            )
        region = self._region_blocks(request)
        if region <= self.arena.largest_servable:
            return None
        return (
            f"A prompt of {len(request.prompt_ids):,} tokens with max_tokens="
            f"{sampling.max_tokens:,} reserves {self.reserved_tokens(request):,} positions "
            f"under contiguous_{self.reservation}, a region of {region:,} blocks of "
            f"{self.block_size}; the longest in a pool of {self.num_blocks - 1:,} has "
            f"{self.arena.largest_servable:,}. Raise num_blocks, or lower max_context or "
            "max_tokens."
        )

    def admit(self, row: int, request: Request, keep_free: int) -> int | None:
        """The whole region; nothing need stay free for growth, and nothing is cached."""
        del keep_free
        region = self._region_blocks(request)
        start = self.arena.allocate(region)
        if start is None:
            return None
        reserved_tokens = self.reserved_tokens(request)
        table_blocks = -(-reserved_tokens // self.block_size)
        first = FIRST_BLOCK + start
        self._tables.append(self._group, row, range(first, first + table_blocks))
        self._fill_with_nan(first, region)
        self.regions.num_blocks[row] = region
        self.regions.reserved_tokens[row] = reserved_tokens
        self.regions.final_tokens[row] = min(request.expected_tokens, self._max_context)
        return 0

    def grow(self, rows: np.ndarray, ends: np.ndarray) -> bool:
        return False

    def extend(self, row: int, num_tokens: int) -> bool:
        """True: the region holds all that the request can become."""
        assert num_tokens <= self.regions.reserved_tokens[row], "beyond the reservation"
        return True

    def fork(self, row: int, child: int, request: Request) -> bool:
        """A region of its own, into which all blocks with tokens are copied."""
        if self.admit(child, request, keep_free=0) is None:
            return False
        computed = int(self._tables.num_computed[row])
        table = self._tables.block_tables[self._group]
        for index in range(-(-computed // self.block_size)):
            src, dst = int(table[row, index]), int(table[child, index])
            self.journal.copy(self._group, src, dst, request.request_id)
        return True

    def committed(self, rows: np.ndarray) -> None:
        """Nothing is shared."""

    def set_now(self, now_s: float) -> None:
        """Nothing is retained."""

    def num_freed_by(self, rows: Sequence[int]) -> int:
        """Blocks of the rows' regions."""
        return int(self.regions.num_blocks[list(rows)].sum())

    def release(self, row: int, *, retain: bool = True) -> None:
        """Gives the row's region back; nothing of it stays cached."""
        del retain
        first = int(self._tables.block_tables[self._group][row, 0])
        self.arena.free(first - FIRST_BLOCK)
        self._fill_with_nan(first, int(self.regions.num_blocks[row]))
        self._tables.clear_blocks(self._group, row)
        self.regions.num_blocks[row] = 0
        self.regions.reserved_tokens[row] = 0
        self.regions.final_tokens[row] = 0

    def _fill_with_nan(self, first: int, num_blocks: int) -> None:
        self.journal.poison(self._group, list(range(first, first + num_blocks)))

    def _region_blocks(self, request: Request) -> int:
        reserved_blocks = -(-self.reserved_tokens(request) // self.block_size)
        return next_power_of_two(reserved_blocks)

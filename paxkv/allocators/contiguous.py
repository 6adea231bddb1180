"""One contiguous region per sequence: the caches that PagedAttention replaced.

A region is a table of consecutive blocks, under the same scheduler and kernels. Most kinds
reserve it whole at admission: Orca's from a buddy arena (EVAL §2.1), others to the exact
length. One begins with what is known and grows; one is compacted when gaps are in the way.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paxkv.allocators.beam_regions import BeamRegions
from paxkv.allocators.buddy import BuddyArena, next_power_of_two
from paxkv.allocators.first_fit import FirstFitArena
from paxkv.allocators.usage import GroupUsage, Regions
from paxkv.journal import Journal
from paxkv.sequence_tables import SequenceTables
from paxkv.types import Request

FIRST_BLOCK = 1  # unit 0 of the arena; block 0 is the null block

# Tokens that a region is made for, given the request and the context.
Reservation = Callable[[Request, int], int]


def _context(request: Request, max_context: int) -> int:
    return len(request.prompt_ids) + max_context


def _rounded_output(request: Request, max_context: int) -> int:
    return len(request.prompt_ids) + next_power_of_two(request.sampling.max_tokens)


def _bound(request: Request, max_context: int) -> int:
    return request.expected_tokens


def _known(request: Request, max_context: int) -> int:
    return request.num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionKind:
    """How long a region is, where it comes from, and whether it moves."""

    reserve: Reservation
    is_buddy: bool  # chunks of powers of two; else exact lengths, first fit
    needs_length: bool = False  # the true one, so nothing may end a request early
    # moves to a region twice as long when full, or as long as it must be
    grows: bool = False
    compacts: bool = False  # all regions move together where a gap is too short


# Orca's three are those of the paper's evaluation (section 6.1).
KINDS: Mapping[str, RegionKind] = {
    "contiguous_max": RegionKind(reserve=_context, is_buddy=True),
    "contiguous_pow2": RegionKind(reserve=_rounded_output, is_buddy=True),
    "contiguous_oracle": RegionKind(reserve=_bound, is_buddy=True, needs_length=True),
    "contiguous_first_fit": RegionKind(reserve=_bound, is_buddy=False),
    "contiguous_compact": RegionKind(reserve=_bound, is_buddy=False, compacts=True),
    "contiguous_grow": RegionKind(reserve=_known, is_buddy=False, grows=True),
}


class ContiguousAllocator:
    """Regions of ceil(reserved tokens / block size) blocks, or what the arena makes of it.

    The table names only the blocks of the reservation; the rest is the buddy's rounding.
    """

    def __init__(
        self,
        name: str,
        tables: SequenceTables,
        *,
        num_blocks: int,
        block_size: int,
        max_context: int,
        shuffle_seed: int | None = None,
        group: int = 0,
        journal: Journal | None = None,
    ):
        """`name`: one of `KINDS`."""
        self.journal = journal or Journal()
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.name = name
        self.kind = KINDS[name]
        num_units = num_blocks - FIRST_BLOCK
        self._most_units = -(-max_context // block_size)
        if self.kind.is_buddy:
            largest = next_power_of_two(self._most_units)
            self.arena = BuddyArena(num_units, largest, shuffle_seed)
        else:
            self.arena = FirstFitArena(num_units, shuffle_seed)
        self._beams = BeamRegions()
        self.regions = Regions(
            num_blocks=np.zeros(tables.num_rows, np.int32),
            reserved_tokens=np.zeros(tables.num_rows, np.int32),
            final_tokens=np.zeros(tables.num_rows, np.int32),
            num_spares=np.zeros(tables.num_rows, np.int32),
        )
        self._final_tokens = np.zeros(tables.num_rows, np.int32)
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
        """Of a region at admission, at most the context."""
        return min(self.kind.reserve(request, self._max_context), self._max_context)

    def check(self, request: Request) -> str | None:
        """An empty arena must have a region for it, and the oracle must know its length."""
        sampling = request.sampling
        if self.kind.needs_length and not (
            sampling.ignore_eos and not sampling.stop and not sampling.stop_token_ids
        ):
            return (
                f"The allocator {self.name} reserves the true output length, which "
                f"is known only with ignore_eos=True (here {sampling.ignore_eos}) and "
                "without stop strings or stop tokens; set so, or use contiguous_pow2."
            )
        num_beams = max(sampling.num_beams, 1)
        if num_beams > 1 and (self.kind.grows or self.kind.compacts):
            return (
                f"Beams have their regions from admission on, which {self.name} moves; use "
                "contiguous_first_fit or paged."
            )
        most = self.reserved_tokens(request)
        if self.kind.grows:  # the last token generated is never an input
            most = min(request.expected_tokens, self._max_context) - 1
        region = self.arena.units_for(self.blocks_needed(most))
        if self.arena.most_chunks(region) >= num_beams:
            return None
        if region <= self.arena.largest_servable:
            return (
                f"{num_beams} beams reserve a region of {region:,} blocks of "
                f"{self.block_size} each under {self.name}, of which a pool of "
                f"{self.num_blocks - 1:,} has {self.arena.most_chunks(region)}. Raise "
                "num_blocks, or lower best_of, max_context or max_tokens."
            )
        return (
            f"A prompt of {len(request.prompt_ids):,} tokens with max_tokens="
            f"{sampling.max_tokens:,} reserves {most:,} positions "
            f"under {self.name}, a region of {region:,} blocks of "
            f"{self.block_size}; the longest in a pool of {self.num_blocks - 1:,} has "
            f"{self.arena.largest_servable:,}. Raise num_blocks, or lower max_context or "
            "max_tokens."
        )

    def admit(self, row: int, request: Request, keep_free: int) -> int | None:
        """The whole region, of a beam search one for each beam. Only for regions that grow
        must anything else stay free; nothing is cached."""
        reserved_tokens = self.reserved_tokens(request)
        num_blocks = self.blocks_needed(reserved_tokens)
        units = self.arena.units_for(num_blocks)
        if self.kind.grows:
            reserved_tokens = num_blocks * self.block_size
            if units + keep_free > self.arena.num_free:
                return None
        starts = self._allocate_all(units, max(request.sampling.num_beams, 1))
        if not starts:
            return None
        final_tokens = min(request.expected_tokens, self._max_context)
        self._final_tokens[row] = final_tokens  # however long the region is
        self.regions.num_blocks[row] = units
        self.regions.reserved_tokens[row] = reserved_tokens
        self.regions.final_tokens[row] = min(final_tokens, reserved_tokens)
        self._hand_out(row, starts[0])
        if request.sampling.num_beams:
            self._beams.admit(request.request_id, row, starts[1:])
            self.regions.num_spares[row] = len(starts) - 1
        return 0

    def grow(self, rows: np.ndarray, ends: np.ndarray) -> bool:
        return False

    def extend(self, row: int, num_tokens: int) -> bool:
        """True where the region holds all that the request can become; else a longer one
        must be found, with the own one counted as free."""
        if num_tokens <= self.regions.reserved_tokens[row]:
            return True
        assert self.kind.grows, "beyond the reservation"
        start, held = self._place(row)
        needed = self.blocks_needed(num_tokens)
        self.arena.free(start)
        for units in (min(max(2 * held, needed), self._most_units), needed):
            found = self.arena.allocate(units)
            if found is not None:
                self._move(row, found, units)
                reserved_tokens = units * self.block_size
                self.regions.num_blocks[row] = units
                self.regions.reserved_tokens[row] = reserved_tokens
                final_tokens = min(int(self._final_tokens[row]), reserved_tokens)
                self.regions.final_tokens[row] = final_tokens
                return True
        self._exact.take(start, held)
        return False

    def fork(self, row: int, child: int, request: Request) -> bool:
        """A region of its own, into which all blocks with tokens are copied."""
        start = self._beams.fork(row, child)
        if start is not None:
            for of_rows in (*self.regions.per_region, self._final_tokens):
                of_rows[child] = of_rows[row]
            self._hand_out(child, start)
            self._count_spares(self._beams.mates(row))
        elif self.admit(child, request, keep_free=0) is None:
            return False
        table = self._tables.block_tables[self._group]
        for index in range(self._num_filled(row)):
            src, dst = int(table[row, index]), int(table[child, index])
            self.journal.copy(self._group, src, dst, request.request_id)
        return True

    def committed(self, rows: np.ndarray) -> None:
        """Nothing is shared."""

    def set_now(self, now_s: float) -> None:
        """Nothing is retained."""

    def num_freed_by(self, rows: Sequence[int]) -> int:
        """Blocks of the rows' regions, with those that a search keeps for its beams."""
        regions, index = self.regions, list(rows)
        return int((regions.num_blocks[index] * (1 + regions.num_spares[index])).sum())

    def release(self, row: int, *, retain: bool = True) -> None:
        """Gives the row's region back, or to the next beam; nothing of it stays cached."""
        del retain
        start, units = self._place(row)
        mates = self._beams.mates(row)
        for unneeded in self._beams.release(row, start):
            self.arena.free(unneeded)
        self._fill_with_nan(range(FIRST_BLOCK + start, FIRST_BLOCK + start + units))
        self._tables.clear_blocks(self._group, row)
        for of_rows in self.regions.per_region:
            of_rows[row] = 0
        self._count_spares(mates)

    def spare_starts(self, row: int) -> list[int]:
        """First units of the regions that the row's search keeps for beams to come."""
        return self._beams.spares(row)

    @property
    def _exact(self) -> FirstFitArena:
        assert isinstance(self.arena, FirstFitArena), "buddy chunks have fixed places"
        return self.arena

    def _hand_out(self, row: int, start: int) -> None:
        """An empty row's table names its region."""
        first = FIRST_BLOCK + start
        num_blocks = self.blocks_needed(int(self.regions.reserved_tokens[row]))
        self._tables.append(self._group, row, range(first, first + num_blocks))
        self._fill_with_nan(range(first, first + int(self.regions.num_blocks[row])))

    def _count_spares(self, mates: Sequence[int]) -> None:
        for row in mates:
            self.regions.num_spares[row] = len(self._beams.spares(row))

    def _allocate_all(self, units: int, count: int) -> list[int]:
        """Starts of so many regions, or of none."""
        starts: list[int] = []
        while len(starts) < count:
            start = self._allocate(units)
            if start is None:
                for taken in starts:
                    self.arena.free(taken)
                return []
            starts.append(start)
        return starts

    def _allocate(self, units: int) -> int | None:
        start = self.arena.allocate(units)
        if start is None and self.kind.compacts and units <= self.arena.num_free:
            self._compact()
            start = self.arena.allocate(units)
        return start

    def _compact(self) -> None:
        """Slides all regions to the low end, in the order of their places."""
        rows = np.flatnonzero(self.regions.num_blocks).tolist()
        places = [(*self._place(row), row) for row in rows]
        end = 0
        for start, units, row in sorted(places):
            if start > end:
                self._exact.free(start)
                self._exact.take(end, units)
                self._move(row, end, units)
            end += units

    def _move(self, row: int, start: int, units: int) -> None:
        """Copies the row's blocks to a region that may overlap with its own; its table."""
        tables, group = self._tables, self._group
        table = tables.blocks(group, row)
        new = range(FIRST_BLOCK + start, FIRST_BLOCK + start + units)
        copies = list(zip(table[: self._num_filled(row)], new, strict=False))
        # upwards the last block goes first, so that none is overwritten before it is read
        for src, dst in copies if new[0] < table[0] else reversed(copies):
            if src != dst:
                self.journal.copy(group, src, dst, int(tables.request_ids[row]))
        tables.clear_blocks(group, row)
        tables.append(group, row, new)
        self._fill_with_nan(sorted({*table, *new} - {dst for _, dst in copies}))

    def _place(self, row: int) -> tuple[int, int]:
        """First unit and length of the row's region."""
        first = int(self._tables.block_tables[self._group][row, 0])
        return first - FIRST_BLOCK, int(self.regions.num_blocks[row])

    def _num_filled(self, row: int) -> int:
        """Blocks with tokens whose K/V is computed."""
        return -(-self._tables.num_filled(row) // self.block_size)

    def _fill_with_nan(self, blocks: Sequence[int]) -> None:
        self.journal.poison(self._group, list(blocks))

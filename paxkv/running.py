"""The sequences that own a row of the tables and blocks of the pool."""

import bisect
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from jaxtyping import Bool, Int32

from paxkv.accounting import partition_pool
from paxkv.allocators import Allocator
from paxkv.policies.admission import Demand
from paxkv.policies.victim import Candidate
from paxkv.sequence_tables import SequenceTables
from paxkv.swapping import SwappedSequence, Swapper
from paxkv.types import PoolPartition, Request

# Per row of the tables: tokens of its sequence that a step computes, often 0.
RowLengths = Int32[np.ndarray, "rows"]

_rank = attrgetter("rank")


class Running:
    """Running sequences in order of rank: `requests[i]` owns `rows[i]`, 0 is the oldest.

    Holds the mechanism (rows, blocks, slices); who runs is the scheduler's decision.
    """

    rows: Int32[np.ndarray, "S"]

    def __init__(
        self, allocator: Allocator, tables: SequenceTables, swapper: Swapper | None = None
    ):
        self.allocator = allocator
        self.tables = tables
        self.swapper = swapper
        self.requests: list[Request] = []
        self.rows = np.zeros(0, np.int32)

    def __len__(self) -> int:
        return len(self.requests)

    def __contains__(self, request: Request) -> bool:
        index = self._index(request)
        return index < len(self) and self.requests[index] is request

    def row_of(self, request: Request) -> int:
        return int(self.rows[self._running_index(request)])

    @property
    def num_spare_rows(self) -> int:
        """Free rows that no running beam search will need for more beams."""
        promised = 0
        for request in self.requests:
            group = request.group
            if group.beams is not None and request is group.sequences[0]:
                promised += group.num_sequences - len(group.sequences)
        return self.tables.num_free_rows - promised

    def start(
        self, request: Request, budget: int, keep_free: int
    ) -> tuple[int, int] | None:
        """Gives a request a free row and room for its next tokens, at most `budget`.

        The row and how many tokens these are, or None if there is no room for all its
        known tokens besides `keep_free` blocks; then nothing was taken.
        """
        tables = self.tables
        row = tables.acquire()
        tables.request_ids[row] = request.request_id
        try:
            num_cached = self.allocator.admit(row, request, keep_free)
        except BaseException:  # a policy's, perhaps: the row must not be lost with it
            tables.release(row)
            raise
        if num_cached is None:
            tables.release(row)
            return None
        tables.write_known(row, request.prompt_array, request.output_ids)
        tables.num_computed[row] = num_cached
        length = min(request.num_tokens - num_cached, budget)
        has_room = self.allocator.extend(row, num_cached + length)
        assert has_room, "admitted without room for its first tokens"
        self._insert(request, row)
        return row, length

    def resume(
        self,
        requests: Sequence[Request],
        swapped: Sequence[SwappedSequence],
    ) -> list[int]:
        """Brings swapped sequences back, for which the swapper has room; their rows."""
        assert self.swapper is not None
        rows = self.swapper.swap_in(requests, swapped)
        for request, row in zip(requests, rows, strict=True):
            self._insert(request, row)
        return rows

    def swap_out(self, requests: Sequence[Request]) -> list[SwappedSequence] | None:
        """Moves sequences to the host and takes their rows; None: it has no room."""
        if self.swapper is None:
            return None
        rows = [self.row_of(request) for request in requests]
        swapped = self.swapper.swap_out(rows)
        if swapped is not None:
            for request in requests:
                self._remove(request)
        return swapped

    def fork(self, request: Request, child: Request) -> int | None:
        """Gives `child` a row that shares all blocks of the running `request`.

        None: there is no row, or no room where blocks cannot be shared.
        """
        num_rows = self.num_spare_rows if child.group.beams is None else 1
        if not (num_rows > 0 and self.tables.num_free_rows):
            return None
        row, child_row = self.row_of(request), self.tables.acquire()
        self.tables.request_ids[child_row] = child.request_id
        self.tables.fork(row, child_row)
        if not self.allocator.fork(row, child_row, child):
            self.tables.release(child_row)
            return None
        self._insert(child, child_row)
        return child_row

    def vacate(self, request: Request, *, retain: bool = True) -> int:
        """Frees a sequence's row and blocks; how many of its tokens were computed.

        Without `retain` nothing of it stays cached.
        """
        row = self._remove(request)
        num_computed = int(self.tables.num_computed[row])
        self.allocator.release(row, retain=retain)
        self.tables.release(row)
        return num_computed

    def is_prefill(self) -> Bool[np.ndarray, "rows"]:
        """Rows with more to compute than one token that follows a prompt."""
        tables = self.tables
        is_prompt = tables.num_computed < tables.num_prompt_tokens
        return is_prompt | (tables.num_tokens - tables.num_computed > 1)

    def slices_within(self, budget: int, wanted: RowLengths, *, whole: bool) -> RowLengths:
        """What each row wants, oldest first, until `budget` tokens are used up.

        With `whole`, a row gets all that it wants or nothing.
        """
        wanted_in_order = wanted[self.rows]
        lengths = np.zeros_like(wanted)
        ends = np.cumsum(wanted_in_order)
        if len(ends) and ends[-1] > budget:
            budget_left = budget - (ends - wanted_in_order)
            given = np.clip(budget_left, 0, wanted_in_order)
            if whole:
                given[given < wanted_in_order] = 0
            wanted_in_order = given
        lengths[self.rows] = wanted_in_order
        return lengths

    def extend_tables(self, lengths: RowLengths) -> int | None:
        """Adds the blocks that slices need; the index of the first that gets none."""
        computed, planned = self.tables.num_computed[self.rows], lengths[self.rows]
        ends = computed + planned
        needs = ends > self._covered_tokens()
        if self.allocator.shares_tails:  # perhaps a copy before the first write
            needs |= planned > 0
        if self.allocator.grow(self.rows[needs], ends[needs]):
            return None
        for index in np.flatnonzero(needs).tolist():
            if not self.allocator.extend(int(self.rows[index]), int(ends[index])):
                return index
        return None

    def tokens_without_new_block(self, index: int) -> int:
        """How many more tokens of a request its table has room for, untouched by copies."""
        if self.allocator.shares_tails:
            return 0
        computed = self.tables.num_computed[self.rows[index]]
        return int(self._covered_tokens()[index] - computed)

    def candidates(self) -> list[Candidate]:
        """The running requests with all their sequences, oldest first."""
        gathered: dict[int, tuple[list[Request], list[int]]] = {}
        for request, row in zip(self.requests, self.rows.tolist(), strict=True):
            requests, rows = gathered.setdefault(request.group.request_id, ([], []))
            requests.append(request)
            rows.append(row)
        return [
            Candidate(requests, rows, self.allocator, self.tables)
            for requests, rows in gathered.values()
        ]

    def demands(self) -> Sequence[Demand]:
        """What the running sequences hold, and may come to hold."""
        return _Demands(self)

    def demand(self, request: Request, num_blocks: int) -> Demand:
        """That of one sequence; before it is forked, with all that will be."""
        final = self.allocator.blocks_needed(request.expected_tokens)
        if not request.group.is_forked:
            shared = len(request.prompt_ids) // self.allocator.block_size
            final += (request.group.num_sequences - 1) * max(final - shared, 0)
        return Demand(
            request=request, num_blocks=num_blocks, final_blocks=max(final, num_blocks)
        )

    def candidate(self, request: Request) -> Candidate:
        """One sequence alone."""
        return Candidate([request], [self.row_of(request)], self.allocator, self.tables)

    def partitions(
        self, lengths: RowLengths, *, head_refused: bool
    ) -> tuple[PoolPartition, ...]:
        """The state of each group's pool once slices of `lengths` are computed."""
        computed = self.tables.num_computed[self.rows] + lengths[self.rows]
        return tuple(
            partition_pool(
                self.allocator,
                self.tables,
                self.rows,
                computed,
                head_refused=head_refused,
                group=group,
            )
            for group in range(len(self.tables.block_tables))
        )

    def _covered_tokens(self) -> Int32[np.ndarray, "S"]:
        """The same in every group."""
        return self.tables.num_blocks[0][self.rows] * self.allocator.block_size

    def _insert(self, request: Request, row: int) -> None:
        index = self._index(request)
        self.requests.insert(index, request)
        before, after = self.rows[:index], self.rows[index:]
        self.rows = np.concatenate((before, np.array([row], np.int32), after))

    def _remove(self, request: Request) -> int:
        index = self._running_index(request)
        row = int(self.rows[index])
        del self.requests[index]
        self.rows = np.concatenate((self.rows[:index], self.rows[index + 1 :]))
        return row

    def _running_index(self, request: Request) -> int:
        index = self._index(request)
        runs = index < len(self) and self.requests[index] is request
        assert runs, f"request {request.request_id} is not running"
        return index

    def _index(self, request: Request) -> int:
        return bisect.bisect_left(self.requests, request.rank, key=_rank)


class _Demands(Sequence[Demand]):
    """Those of the running sequences, each made when it is asked for: most policies only
    ask whether anybody runs."""

    def __init__(self, running: Running):
        self._running = running

    def __len__(self) -> int:
        return len(self._running)

    def __getitem__(self, index: Any) -> Any:
        running = self._running
        held = running.tables.num_blocks[0].item(running.rows[index])
        return running.demand(running.requests[index], held)

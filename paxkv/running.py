"""The requests that own a row of the tables and blocks of the pool."""

import bisect
from operator import attrgetter

import numpy as np
from jaxtyping import Int32

from paxkv.accounting import partition_pool
from paxkv.allocators import Allocator, allocators_of_groups
from paxkv.sequence_tables import SequenceTables
from paxkv.types import PoolPartition, Request

# Per row of the tables: tokens of its sequence that a step computes, often 0.
RowLengths = Int32[np.ndarray, "rows"]

_order = attrgetter("order")


class Running:
    """Running requests in order of age: `requests[i]` owns `rows[i]`, 0 is the oldest.

    Holds the mechanism (rows, blocks, slices); who runs is the scheduler's decision.
    """

    rows: Int32[np.ndarray, "S"]

    def __init__(self, allocator: Allocator, tables: SequenceTables):
        self.allocator = allocator
        self.tables = tables
        self.requests: list[Request] = []
        self.rows = np.zeros(0, np.int32)

    def __len__(self) -> int:
        return len(self.requests)

    def __contains__(self, request: Request) -> bool:
        index = self._index(request)
        return index < len(self) and self.requests[index] is request

    def start(self, request: Request, length: int, keep_free: int) -> int | None:
        """Gives a request a free row and room for its first `length` tokens.

        The row, or None if there is no room for all its known tokens besides `keep_free`
        blocks; then nothing was taken.
        """
        row = self.tables.acquire()
        if not self.allocator.admit(row, request, length, keep_free):
            self.tables.release(row)
            return None
        self.tables.write_known(row, request.prompt_ids, request.output_ids)
        index = self._index(request)
        self.requests.insert(index, request)
        self.rows = np.insert(self.rows, index, row)
        return row

    def vacate(self, request: Request) -> int:
        """Frees a request's row and blocks; how many of its tokens were computed."""
        assert request in self, f"request {request.request_id} is not running"
        index = self._index(request)
        row = int(self.rows[index])
        del self.requests[index]
        self.rows = np.delete(self.rows, index)
        num_computed = int(self.tables.num_computed[row])
        self.allocator.release(row)
        self.tables.release(row)
        return num_computed

    def slices_within(self, budget: int, wanted: RowLengths) -> RowLengths:
        """What each row wants, oldest request first, until `budget` tokens are used up."""
        wanted_in_order = wanted[self.rows]
        budget_left = budget - (np.cumsum(wanted_in_order) - wanted_in_order)
        lengths = np.zeros_like(wanted)
        lengths[self.rows] = np.clip(budget_left, 0, wanted_in_order)
        return lengths

    def extend_tables(self, lengths: RowLengths) -> int | None:
        """Adds the blocks that slices need; the index of the first that gets none."""
        ends = self.tables.num_computed[self.rows] + lengths[self.rows]
        for index in np.flatnonzero(ends > self._covered_tokens()).tolist():
            if not self.allocator.extend(int(self.rows[index]), int(ends[index])):
                return index
        return None

    def tokens_without_new_block(self, index: int) -> int:
        """How many more tokens of a request its table has room for."""
        computed = self.tables.num_computed[self.rows[index]]
        return int(self._covered_tokens()[index] - computed)

    def partitions(
        self, lengths: RowLengths, *, head_refused: bool
    ) -> tuple[PoolPartition, ...]:
        """The state of each group's pool once slices of `lengths` are computed."""
        computed = self.tables.num_computed[self.rows] + lengths[self.rows]
        return tuple(
            partition_pool(
                allocator,
                self.tables,
                self.rows,
                computed,
                head_refused=head_refused,
                group=group,
            )
            for group, allocator in enumerate(allocators_of_groups(self.allocator))
        )

    def _covered_tokens(self) -> Int32[np.ndarray, "S"]:
        """The same in every group."""
        return self.tables.num_blocks[0][self.rows] * self.allocator.block_size

    def _index(self, request: Request) -> int:
        return bisect.bisect_left(self.requests, request.order, key=_order)

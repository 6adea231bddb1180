"""What the host knows of every running sequence, as arrays with one row for each."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32

from paxkv.block_pool import NULL_BLOCK


def most_blocks(
    num_tokens: int, block_size: int, window: int | None, max_new_tokens: int
) -> int:
    """Blocks that a sequence of `num_tokens` holds at most: of all its tokens, or of a
    window and the tokens of one step if these are fewer."""
    covering = -(-num_tokens // block_size)
    if window is None:
        return covering
    return min(covering, -(-(window + max_new_tokens) // block_size) + 1)


class SequenceTables:
    """Persistent arrays that the scheduler writes and an executor packs from.

    Of the sequence in a row, tokens [0, num_tokens) are known (prompt + output) and K/V
    of [0, num_computed) is in the cache; K/V of positions below `first_write` is in blocks
    that others share, so a token there that is computed again writes to the null block.
    Per cache group, positions live in blocks `block_tables[group][row,
    num_behind[group][row] : num_blocks[group][row]]`; all other entries point to the null
    block: those past the end, and those behind every window. Rows that nobody owns are
    zero.
    """

    tokens: Int32[np.ndarray, "rows capacity"]
    num_prompt_tokens: Int32[np.ndarray, "rows"]
    num_tokens: Int32[np.ndarray, "rows"]
    num_computed: Int32[np.ndarray, "rows"]
    first_write: Int32[np.ndarray, "rows"]
    block_tables: tuple[Int32[np.ndarray, "rows _"], ...]
    num_blocks: tuple[Int32[np.ndarray, "rows"], ...]
    num_behind: tuple[Int32[np.ndarray, "rows"], ...]

    def __init__(
        self, max_num_seqs: int, max_context: int, blocks_per_sequence: tuple[int, ...]
    ):
        """All rows are free. `blocks_per_sequence` is the table's width per cache group."""
        rows = max_num_seqs
        # One spare column, so that the token after any position can be read.
        self.tokens = np.zeros((rows, max_context + 1), np.int32)
        self.num_prompt_tokens = np.zeros(rows, np.int32)
        self.num_tokens = np.zeros(rows, np.int32)
        self.num_computed = np.zeros(rows, np.int32)
        self.first_write = np.zeros(rows, np.int32)
        self.request_ids = np.zeros(rows, np.int64)  # of the owners, for events
        self.block_tables = tuple(
            np.full((rows, width), NULL_BLOCK, np.int32) for width in blocks_per_sequence
        )
        self.num_blocks = tuple(np.zeros(rows, np.int32) for _ in blocks_per_sequence)
        self.num_behind = tuple(np.zeros(rows, np.int32) for _ in blocks_per_sequence)
        self._free_rows = list(range(rows - 1, -1, -1))
        self._is_free = np.ones(rows, bool)  # the same, to look up

    @property
    def num_rows(self) -> int:
        return len(self.num_tokens)

    @property
    def num_free_rows(self) -> int:
        return len(self._free_rows)

    @property
    def table_bytes(self) -> int:
        """Host bytes of the block tables: what paging keeps beside the tokens."""
        return sum(array.nbytes for array in (*self.block_tables, *self.num_blocks))

    def acquire(self) -> int:
        """Takes a free row, all zero.

        Raises:
          ValueError: all rows are taken.
        """
        if not self._free_rows:
            raise ValueError(
                f"all {self.num_rows} rows are taken; release one, or raise max_num_seqs."
            )
        row = self._free_rows.pop()
        self._is_free[row] = False
        return row

    def write_known(
        self,
        row: int,
        prompt_ids: Sequence[int] | Int32[np.ndarray, "num_prompt"],
        output_ids: Sequence[int],
    ) -> None:
        """Writes a sequence's known tokens into its row; none of them is computed yet."""
        num_prompt, num_known = len(prompt_ids), len(prompt_ids) + len(output_ids)
        self.tokens[row, :num_prompt] = prompt_ids
        self.tokens[row, num_prompt:num_known] = output_ids
        self.num_prompt_tokens[row] = num_prompt
        self.num_tokens[row] = num_known

    def num_filled(self, row: int) -> int:
        """Positions whose K/V is in the row's blocks: the next to write is after them."""
        return max(int(self.num_computed[row]), int(self.first_write[row]))

    def append_token(self, row: int, token_id: int) -> None:
        """One more token is known."""
        self.tokens[row, self.num_tokens[row]] = token_id
        self.num_tokens[row] += 1

    def append(self, group: int, row: int, blocks: Sequence[int]) -> None:
        """Adds blocks to the end of a row's table; the entries before stay as they are."""
        first = int(self.num_blocks[group][row])
        end = first + len(blocks)
        width = self.block_tables[group].shape[1]
        assert end <= width, f"{end} blocks in a table of {width}: beyond the context"
        self.block_tables[group][row, first:end] = blocks
        self.num_blocks[group][row] = end

    def blocks(self, group: int, row: int) -> list[int]:
        """The blocks of a row in the order of its positions, without those behind."""
        first, end = int(self.num_behind[group][row]), int(self.num_blocks[group][row])
        return self.block_tables[group][row, first:end].tolist()

    def leave_behind(self, group: int, row: int, num_behind: int) -> list[int]:
        """Takes the blocks before index `num_behind` out of a row; they are the caller's
        to free."""
        first = int(self.num_behind[group][row])
        left = self.block_tables[group][row, first:num_behind].tolist()
        self.block_tables[group][row, first:num_behind] = NULL_BLOCK
        self.num_behind[group][row] = num_behind
        return left

    def cut(self, group: int, row: int, num_blocks: int) -> list[int]:
        """Takes the blocks after the first `num_blocks` out of a row; they are the
        caller's to free."""
        count = int(self.num_blocks[group][row])
        surplus = self.block_tables[group][row, num_blocks:count].tolist()
        self.block_tables[group][row, num_blocks:count] = NULL_BLOCK
        self.num_blocks[group][row] = min(count, num_blocks)
        return surplus

    def clear_blocks(self, group: int, row: int) -> None:
        """Empties a row's table; its blocks are the caller's to free."""
        self.block_tables[group][row, : self.num_blocks[group][row]] = NULL_BLOCK
        self.num_blocks[group][row] = 0
        self.num_behind[group][row] = 0

    def fork(self, row: int, child: int) -> None:
        """Copies what is known of a row's tokens to a row just acquired; no blocks."""
        count = int(self.num_tokens[row])
        self.tokens[child, :count] = self.tokens[row, :count]
        for array in (self.num_prompt_tokens, self.num_tokens, self.num_computed):
            array[child] = array[row]
        self.first_write[child] = self.first_write[row]

    def release(self, row: int) -> None:
        """Gives a row back, zeroed. Its blocks must have been freed before.

        Raises:
          ValueError: the row is free already.
        """
        if self._is_free[row]:
            raise ValueError(f"{row=} has no owner (released twice?).")
        assert all(counts[row] == 0 for counts in self.num_blocks), "blocks would leak"
        self.tokens[row, : self.num_tokens[row]] = 0
        self.num_prompt_tokens[row] = 0
        self.num_tokens[row] = 0
        self.num_computed[row] = 0
        self.first_write[row] = 0
        self._free_rows.append(row)
        self._is_free[row] = True

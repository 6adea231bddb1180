"""PagedAttention: blocks one at a time, as tokens come; nothing is reserved."""

from paxkv.block_pool import BlockPool
from paxkv.sequence_tables import SequenceTables
from paxkv.types import Request


class PagedAllocator:
    """Any free block serves any sequence, so only a last block's tail is wasted."""

    regions = None  # nothing is held beyond the blocks in the tables

    def __init__(
        self,
        pool: BlockPool,
        tables: SequenceTables,
        *,
        block_size: int,
        max_context: int,
        group: int = 0,
    ):
        self.pool = pool
        self.num_blocks = pool.num_blocks
        self.block_size = block_size
        self._tables = tables
        self._max_context = max_context
        self._group = group

    @property
    def num_free(self) -> int:
        return self.pool.num_free

    def check(self, request: Request) -> str | None:
        """Alone in the pool a request must be able to finish.

        The last token it generates is never an input, so it needs no position.
        """
        num_prompt, usable = len(request.prompt_ids), self.num_blocks - 1
        positions = min(request.expected_tokens, self._max_context) - 1
        if self._blocks_for(positions) <= usable:
            return None
        if self._blocks_for(num_prompt) > usable:
            return (
                f"A prompt of {num_prompt:,} tokens exceeds the pool of "
                f"{usable * self.block_size:,} positions; raise num_blocks or shorten it."
            )
        return (
            f"A prompt of {num_prompt:,} tokens with max_tokens="
            f"{request.sampling.max_tokens:,} needs {positions:,} positions, the pool has "
            f"{usable * self.block_size:,}; raise num_blocks or lower max_tokens."
        )

    def admit(self, row: int, request: Request, num_tokens: int, keep_free: int) -> bool:
        """Blocks for the first `num_tokens`, if there are some for all known tokens."""
        needed = self._blocks_for(request.num_tokens)
        if needed > self.pool.num_free - keep_free:
            return False
        return self.extend(row, num_tokens)

    def extend(self, row: int, num_tokens: int) -> bool:
        """Blocks up to position `num_tokens`; those that the row has stay in place."""
        missing = self._blocks_for(num_tokens) - int(
            self._tables.num_blocks[self._group][row]
        )
        if missing > self.pool.num_free:
            return False
        if missing > 0:
            self._tables.append(self._group, row, self.pool.allocate(missing))
        return True

    def release(self, row: int) -> None:
        """Gives up the row's share in its blocks."""
        self.pool.free(self._tables.blocks(self._group, row))
        self._tables.clear_blocks(self._group, row)

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

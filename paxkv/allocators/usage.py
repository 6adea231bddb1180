"""What an allocator tells of a group's pool."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class Regions:
    """Per table row, 0 where none is held: what was reserved, and what of it is for use."""

    num_blocks: Int32[np.ndarray, "rows"]  # of the region; of a buddy, a power of two
    reserved_tokens: Int32[np.ndarray, "rows"]  # prompt + estimate; all, if it grows
    final_tokens: Int32[np.ndarray, "rows"]  # prompt + true output; at most the former
    # more regions of the same kind that are held for beams to come
    num_spares: Int32[np.ndarray, "rows"]

    @property
    def per_region(self) -> tuple[Int32[np.ndarray, "rows"], ...]:
        """What is the same for all regions of a request."""
        return self.num_blocks, self.reserved_tokens, self.final_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupUsage:
    """A pool in numbers; `num_blocks` counts the null block, the others do not."""

    num_blocks: int
    num_free: int
    num_cached: int  # without an owner, but a later request may hit them
    num_duplicates: int  # owned, with the content of another cached block
    regions: Regions | None  # None: rows hold no more than the blocks in their tables

    @property
    def num_available(self) -> int:
        return self.num_free + self.num_cached

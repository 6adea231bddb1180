"""What an allocator tells of a group's pool."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class Regions:
    """Per table row, 0 where none is held: what was reserved, and what of it is for use."""

    num_blocks: Int32[np.ndarray, "rows"]  # of the region, a power of two
    reserved_tokens: Int32[np.ndarray, "rows"]  # prompt + estimated output
    final_tokens: Int32[np.ndarray, "rows"]  # prompt + true output


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

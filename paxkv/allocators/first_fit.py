"""An arena of regions of any length: the lowest gap that is long enough serves (first fit,
Knuth, The Art of Computer Programming, volume 1, section 2.5)."""

import bisect
import random
from collections.abc import Iterator


class FirstFitArena:
    """Units [0, num_units) as regions, each free or given away; free neighbours are one."""

    def __init__(self, num_units: int, shuffle_seed: int | None = None):
        """`shuffle_seed`: any gap that is long enough serves, a random one."""
        self.num_free = num_units
        self.largest_servable = num_units  # by an empty arena
        self._free = [(0, num_units)] if num_units else []  # (start, size), ascending
        self._given: dict[int, int] = {}  # start -> size
        self._random = None if shuffle_seed is None else random.Random(shuffle_seed)

    def units_for(self, count: int) -> int:
        """Units of a region for `count`: no more."""
        return count

    def most_chunks(self, size: int) -> int:
        """Regions of `size` units in an empty arena."""
        return self.largest_servable // size

    def allocate(self, size: int) -> int | None:
        """Takes a region of `size` ≥ 1 units; its start, or None if no gap is that long."""
        gaps = (start for start, length in self._free if length >= size)
        if self._random is None:
            start = next(gaps, None)
        else:
            start = self._random.choice([*gaps] or [None])
        if start is not None:
            self.take(start, size)
        return start

    def take(self, start: int, size: int) -> None:
        """Takes this very region.

        Raises:
          ValueError: not all of it is free.
        """
        index = bisect.bisect_right(self._free, start, key=_start_of) - 1
        gap_start, gap = self._free[index] if index >= 0 else (0, 0)
        end, gap_end = start + size, gap_start + gap
        if end > gap_end:
            raise ValueError(f"units [{start}, {end}) are not all free; take others.")
        left = [(gap_start, start - gap_start), (end, gap_end - end)]
        self._free[index : index + 1] = [piece for piece in left if piece[1]]
        self._given[start] = size
        self.num_free -= size

    def free(self, start: int) -> None:
        """Gives a region back and joins it with the gaps beside it.

        Raises:
          ValueError: no region that starts there was given away.
        """
        if start not in self._given:
            raise ValueError(f"no region starts at unit {start} (freed twice?).")
        size = self._given.pop(start)
        self.num_free += size
        index = bisect.bisect_left(self._free, start, key=_start_of)
        first, last = index, index
        if index < len(self._free) and self._free[index][0] == start + size:
            size, last = size + self._free[index][1], index + 1
        if index and sum(self._free[index - 1]) == start:
            start, size = self._free[index - 1][0], size + self._free[index - 1][1]
            first = index - 1
        self._free[first:last] = [(start, size)]

    def free_chunks(self) -> Iterator[tuple[int, int]]:
        """(start, size) of every gap."""
        yield from self._free

    def given_chunks(self) -> Iterator[tuple[int, int]]:
        """(start, size) of every region that was given away."""
        yield from self._given.items()


def _start_of(chunk: tuple[int, int]) -> int:
    return chunk[0]

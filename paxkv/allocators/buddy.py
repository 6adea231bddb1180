"""A binary buddy arena (EVAL §2.1): contiguous chunks whose sizes are powers of two."""

import random
from collections.abc import Iterator


def next_power_of_two(count: int) -> int:
    """The smallest power of two ≥ count ≥ 1."""
    return 1 << (count - 1).bit_length()


def carve(num_units: int, largest: int) -> list[tuple[int, int]]:
    """Chunks (start, size) that fill [0, num_units): greedily, none over `largest`.

    983 units and chunks of at most 128 give 7 x 128 + 64 + 16 + 4 + 2 + 1.
    """
    chunks, start, size = [], 0, largest
    while start < num_units:
        while size > num_units - start:
            size //= 2
        chunks.append((start, size))
        start += size
    return chunks


class BuddyArena:
    """Units [0, num_units) as chunks, each free or given away.

    A chunk of size s starts at a multiple of s; its buddy starts at `start ^ s`.
    """

    def __init__(self, num_units: int, largest: int, shuffle_seed: int | None = None):
        """`largest`: units of the largest chunk, a power of two.

        Free chunks of one size are a stack, the highest on top at first, or shuffled.
        """
        assert largest == next_power_of_two(largest), f"{largest=} is no power of two"
        self.largest = largest
        self.num_free = num_units
        self._num_units = num_units
        chunks = carve(num_units, largest)
        self.largest_servable = chunks[0][1]  # by an empty arena
        if shuffle_seed is not None:
            random.Random(shuffle_seed).shuffle(chunks)
        # size -> starts of free chunks; a dict is a stack with removal from the middle
        self._free: dict[int, dict[int, None]] = {
            1 << order: {} for order in range(largest.bit_length())
        }
        self._given: dict[int, int] = {}  # start -> size
        for start, size in chunks:
            self._free[size][start] = None

    def units_for(self, count: int) -> int:
        """Units of a chunk for `count`: the next power of two."""
        return next_power_of_two(count)

    def most_chunks(self, size: int) -> int:
        """Chunks of `size` units, a power of two, in an empty arena."""
        return sum(whole // size for _, whole in carve(self._num_units, self.largest))

    def allocate(self, size: int) -> int | None:
        """Takes a chunk of `size` units, a power of two; its start, or None if none fits.

        The smallest free chunk that is large enough is halved, keeping the low half,
        until it has the right size.
        """
        found = size
        while not self._free.get(found):
            if found >= self.largest:
                return None
            found *= 2
        start, _ = self._free[found].popitem()
        while found > size:
            found //= 2
            self._free[found][start + found] = None
        self._given[start] = size
        self.num_free -= size
        return start

    def free(self, start: int) -> None:
        """Gives a chunk back and joins it with its buddy as long as that is free.

        Raises:
          ValueError: no chunk that starts there was given away.
        """
        if start not in self._given:
            raise ValueError(f"no chunk starts at unit {start} (freed twice?).")
        size = self._given.pop(start)
        self.num_free += size
        while size < self.largest and start ^ size in self._free[size]:
            del self._free[size][start ^ size]
            start &= ~size
            size *= 2
        self._free[size][start] = None

    def free_chunks(self) -> Iterator[tuple[int, int]]:
        """(start, size) of every free chunk."""
        for size, starts in self._free.items():
            for start in starts:
                yield start, size

    def given_chunks(self) -> Iterator[tuple[int, int]]:
        """(start, size) of every chunk that was given away."""
        yield from self._given.items()

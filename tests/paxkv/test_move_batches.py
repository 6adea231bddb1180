"""Moves are joined as far as their order allows, and no further."""

import pytest

from paxkv.move_batches import batches
from paxkv.moves import CopyBlock, Load, Poison, Spill, SwapIn, SwapOut


def copy(src, dst, group=0):
    return CopyBlock(group=group, src=src, dst=dst)


def out(block, host_slot):
    return SwapOut(group=0, block=block, host_slot=host_slot)


def back(host_slot, block):
    return SwapIn(group=0, host_slot=host_slot, block=block)


def spill(host_slot):
    return Spill(group=0, host_slot=host_slot, digest=bytes(32))


def load(block):
    return Load(group=0, payload=b"", block=block)


def poison(*blocks):
    return Poison(group=0, blocks=blocks)


def lengths(moves, max_moves=100):
    return [len(batch.moves) for batch in batches(moves, max_moves)]


@pytest.mark.parametrize(
    ("moves", "wanted"),
    [
        ([copy(1, 2), copy(1, 3), copy(4, 5)], [3]),  # one source, two copies
        ([copy(1, 2), copy(2, 3)], [1, 1]),  # reads what was written
        ([copy(1, 2), copy(3, 1)], [1, 1]),  # writes what was read
        ([copy(1, 2), copy(3, 2)], [1, 1]),  # writes the same
        ([copy(1, 1), copy(3, 2)], [1]),  # to itself: nothing to do
        ([copy(1, 2), copy(1, 2, group=1), copy(3, 4)], [2, 1]),  # groups share nothing
        ([out(1, 0), out(1, 1), out(2, 2)], [3]),
        ([out(1, 0), out(2, 0)], [1, 1]),
        ([back(0, 1), back(0, 2)], [2]),
        ([back(0, 1), back(1, 1)], [1, 1]),
        ([out(1, 0), back(7, 1), out(2, 1), back(8, 2)], [2, 2]),  # vacated, then filled
        ([out(1, 0), back(0, 2), out(2, 1)], [1, 1, 1]),  # of what has just come back
        ([out(1, 0), spill(0), out(2, 0)], [1, 1, 1]),  # the slot is used again
        ([out(1, 0), spill(0), out(2, 1), spill(1)], [2, 2]),
        ([load(1), copy(1, 2), load(3)], [2, 1]),
        ([poison(1, 2), poison(3), back(0, 2)], [2, 1]),
        ([], []),
    ],
)
def test_batches(moves, wanted):
    assert lengths(moves) == wanted


def test_long_batches_are_divided():
    assert lengths([out(1, slot) for slot in range(7)], max_moves=3) == [3, 3, 1]

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxkv.allocators.first_fit import FirstFitArena


def test_the_lowest_gap_that_is_long_enough_serves():
    arena = FirstFitArena(10)
    starts = [arena.allocate(size) for size in (2, 3, 1, 4)]
    assert starts == [0, 2, 5, 6]
    assert arena.allocate(1) is None
    arena.free(2)
    arena.free(6)
    assert list(arena.free_chunks()) == [(2, 3), (6, 4)]
    assert arena.allocate(4) == 6
    assert arena.allocate(2) == 2
    assert (arena.num_free, list(arena.free_chunks())) == (1, [(4, 1)])


def test_a_freed_region_joins_the_gaps_on_both_sides():
    arena = FirstFitArena(9)
    for size in (3, 3, 3):
        arena.allocate(size)
    arena.free(0)
    arena.free(6)
    arena.free(3)
    assert list(arena.free_chunks()) == [(0, 9)]


def test_a_region_can_be_taken_by_its_place():
    arena = FirstFitArena(8)
    arena.take(3, 2)
    assert sorted(arena.free_chunks()) == [(0, 3), (5, 3)]
    with pytest.raises(ValueError, match=r"units \[2, 4\) are not all free"):
        arena.take(2, 2)
    with pytest.raises(ValueError, match=r"units \[7, 9\) are not all free"):
        arena.take(7, 2)


def test_freeing_a_region_twice_raises():
    arena = FirstFitArena(4)
    arena.free(arena.allocate(2))
    with pytest.raises(ValueError, match="freed twice"):
        arena.free(0)


@given(st.integers(1, 60), st.integers(0, 3), st.data())
def test_regions_always_tile_the_arena(num_units, seed, data):
    """Gaps are apart from each other, and a request is refused only if none is as long."""
    arena = FirstFitArena(num_units, shuffle_seed=seed or None)
    held = []
    for _ in range(data.draw(st.integers(0, 40))):
        if held and data.draw(st.booleans()):
            arena.free(held.pop(data.draw(st.integers(0, len(held) - 1))))
        else:
            size = data.draw(st.integers(1, num_units))
            longest = max((length for _, length in arena.free_chunks()), default=0)
            start = arena.allocate(size)
            assert (start is None) == (size > longest)
            if start is not None:
                held.append(start)
        gaps = list(arena.free_chunks())
        chunks = sorted([*gaps, *arena.given_chunks()])
        ends = [sum(size for _, size in chunks[:index]) for index in range(len(chunks))]
        assert [start for start, _ in chunks] == ends
        assert sum(size for _, size in chunks) == num_units
        assert sum(size for _, size in gaps) == arena.num_free
        apart = zip(gaps, gaps[1:], strict=False)
        assert all(start + size < following for (start, size), (following, _) in apart)
    for start in held:
        arena.free(start)
    assert list(arena.free_chunks()) == [(0, num_units)]

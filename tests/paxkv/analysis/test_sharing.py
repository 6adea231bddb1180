"""Blocks that are shared, counted: those that arithmetic gives, exactly."""

import pytest

from paxkv.analysis.sharing import (
    SharedLoad,
    blocks_by_owners,
    count_blocks,
    sharing_table,
)


def load(**sizes) -> SharedLoad:
    few = {"num_requests": 6, "num_shared": 40, "num_own": 9, "num_outputs": 5}
    return SharedLoad(**few | {"block_size": 8} | sizes)


def test_blocks_by_owners():
    assert blocks_by_owners([0, 3, 1, 0, 1, 3, 3]) == {1: 2, 3: 3}
    assert blocks_by_owners([0, 0]) == {}


def test_a_system_prompt_of_4992_tokens_is_312_shared_blocks():
    """100 requests that begin with the same 4,992 tokens, blocks of 16."""
    system = load(
        num_requests=100, num_shared=4992, num_own=64, num_outputs=16, block_size=16
    )
    shared = count_blocks(system, shares=True)
    assert shared.shared() == 312
    assert shared.by_owners == ({1: 500, 100: 312},)  # 5 own blocks of each request
    assert shared.num_hit_tokens == 99 * 4992
    apart = count_blocks(system, shares=False)
    assert apart.held() == 100 * 317 and apart.shared() == apart.num_hit_tokens == 0
    assert apart.held() - shared.held() == 99 * 312
    assert apart.num_computed_tokens - shared.num_computed_tokens == 99 * 4992


def test_a_block_that_is_common_in_part_is_not_shared():
    assert count_blocks(load(num_shared=47), shares=True).shared() == 5
    assert count_blocks(load(num_shared=7), shares=True).shared() == 0


def test_samples_share_their_prompt_and_copy_its_last_block():
    several = load(num_samples=4)  # 49 prompt tokens: 5 common blocks, 1 own, and 1 token
    shared = count_blocks(several, shares=True)
    assert shared.by_owners == ({1: 24, 4: 6, 24: 5},)
    assert shared.num_copied_blocks == (6 * 3,)  # one sample of four keeps the original
    assert shared.num_hit_tokens == 5 * 40
    apart = count_blocks(several, shares=False)
    assert apart.by_owners == ({1: 24 * 7},) and apart.num_copied_blocks == (0,)


@pytest.mark.parametrize("shares", [False, True])
def test_a_window_saves_blocks_of_its_group_and_none_of_the_other(shares):
    grown = load(num_outputs=12)  # beyond the block in which the prompt ends
    (plain,) = count_blocks(grown, shares=shares).by_owners
    held = count_blocks(grown, shares=shares, windows=(None, 16))
    assert held.by_owners[0] == plain
    # the block that begins at position 56 was taken when positions 41 to 56 were seen
    own = {1: 6 * 3}
    assert held.by_owners[1] == own
    assert held.held(0) == (6 * 3 + 5 if shares else 6 * 8)


def test_progress_counts_all_sequences():
    ended = []
    count_blocks(load(num_samples=2), shares=True, on_progress=ended.append)
    assert sum(ended) == 12


def test_the_table_shows_what_was_counted():
    apart, shared = (
        count_blocks(load(num_samples=4), shares=shares, windows=(None, 16))
        for shares in (False, True)
    )
    table = sharing_table(apart, shared, 16)
    cells = {line[:31].strip(): line[31:].split() for line in table.splitlines()}
    assert cells["blocks held"] == ["168", "35"]
    assert cells["shared by several"] == ["0", "11"]
    assert cells["saved by sharing"] == ["133"]
    assert cells["blocks copied"] == ["0", "18"]
    assert "24 blocks have 1, 6 blocks have 4, 5 blocks have 24" in table
    assert max(map(len, table.splitlines())) <= 80


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"num_requests": 0}, "num_requests=0.*all others must be at least 1"),
        ({"num_own": -1}, "num_own=-1"),
        ({"num_shared": 0, "num_own": 0}, "empty prompts"),
    ],
)
def test_impossible_loads_are_refused(sizes, says):
    with pytest.raises(ValueError, match=says):
        load(**sizes)

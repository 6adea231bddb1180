"""Requests that are replayed hold the blocks that they are told to begin with."""

from typing import Any

from configs import trial
from paxkv.reproduction.runners.paper_examples import run


def tree_of(allocator="paged", **example) -> dict[str, Any]:
    config = trial.get_config("opt_13b,a100_40,contiguous_max")
    config.cache.update(allocator=allocator, block_size=2, num_blocks=65)
    config.engine.max_context = 16
    unset = {"prompt_tokens": (3,), "output_tokens": (6,), "num_steps": 2}
    return {**config.to_dict(), "example": {**unset, **example}}


def test_blocks_come_in_the_order_that_was_asked_for():
    found = run(
        tree_of(prompt_tokens=(3, 2), output_tokens=(6, 6), free_blocks=(9, 4, 6, 2)),
        "calibrated",
    )
    # the first needs its third block a step later, as it has room for a token
    assert found["tables"] == [[[9, 4], [6]], [[9, 4], [6, 2]]]
    assert found["refcounts"] == [[[1, 1], [1]], [[1, 1], [1, 1]]]
    assert found["num_copied_blocks"] == 0


def test_beams_go_on_from_their_parents_in_the_order_told():
    found = run(
        tree_of(
            prompt_tokens=(2,),
            num_samples=3,
            use_beam_search=True,
            parents=((0, 0, 0), (0, 1, 2), (1, 1, 2)),
            num_steps=4,
        ),
        "calibrated",
    )
    prompt = found["tables"][0][0]
    assert found["tables"][0] == [prompt] * 3 and found["refcounts"][0] == [[3]] * 3
    first, second, third = (table[1] for table in found["tables"][1])
    assert len({first, second, third}) == 3
    # the first beam is dropped, whose block is free for a new one
    assert [table[:2] for table in found["tables"][2]] == [
        [*prompt, second],
        [*prompt, second],
        [*prompt, third],
    ]
    assert found["refcounts"][2] == [[3, 2], [3, 2], [3, 1]]
    assert first in {table[2] for table in found["tables"][3]}
    assert found["num_copied_blocks"] == 0  # all fork where a block is full


def test_regions_share_nothing_and_are_reserved_whole():
    found = run(tree_of("contiguous_max"), "calibrated")
    assert found["refcounts"] == [[[]], [[]]]
    assert [len(tables[0]) for tables in found["tables"]] == [8, 8]
    assert found["token_states"] == 4  # the prompt, and the first output
    assert (found["reserved"], found["internal"]) == (3 + 6 - 4, 16 - 9)

"""The recall task: prompts are well formed, batches agree with them, scores count."""

import re

import numpy as np
import pytest

from paxkv import recall

PROMPT = re.compile(rb"((?:[a-z][0-9]=[A-Z][a-z];)+)\?((?:[a-z][0-9])+):")


def parse(prompt: bytes) -> tuple[dict[bytes, bytes], list[bytes]]:
    found = PROMPT.fullmatch(prompt)
    assert found, prompt
    pairs = [pair.split(b"=") for pair in found[1].rstrip(b";").split(b";")]
    asked = [found[2][i : i + 2] for i in range(0, len(found[2]), 2)]
    assert len(dict(pairs)) == len(pairs) == len({value for _, value in pairs})
    assert len(set(asked)) == len(asked)
    return dict(pairs), asked


def answer(prompt: bytes) -> bytes:
    pairs, asked = parse(prompt)
    return b"".join(pairs[key] for key in asked) + b"\n"


@pytest.mark.parametrize("counts", [(1, 1), (7, 3), (40, 40), (260, 260)])
def test_the_answer_lists_the_values_of_the_queried_keys(counts):
    prompt = recall.make_prompt(np.random.default_rng(0), *counts)
    assert bytes(prompt.answer_ids) == answer(bytes(prompt.prompt_ids))
    assert len(prompt.prompt_ids) == recall.prompt_len(*counts)
    assert (prompt.num_pairs, prompt.num_queries) == counts


@pytest.mark.parametrize("counts", [(0, 0), (3, 0), (3, 4), (261, 1)])
def test_impossible_counts_are_refused(counts):
    with pytest.raises(ValueError, match="num_queries"):
        recall.make_prompt(np.random.default_rng(0), *counts)


def test_a_filled_prompt_uses_its_room_and_asks_what_the_output_can_answer():
    rng = np.random.default_rng(1)
    for _ in range(300):
        room, output_len = int(rng.integers(1, 1100)), int(rng.integers(1, 600))
        prompt, raised = recall.fill_prompt(rng, room, output_len)
        assert bytes(prompt.answer_ids) == answer(bytes(prompt.prompt_ids))
        assert raised == (room < recall.prompt_len(1, 1) or output_len < 2)
        assert len(prompt.prompt_ids) <= max(room, recall.prompt_len(1, 1))
        if not raised:
            assert room - len(prompt.prompt_ids) < recall.PAIR_LEN + recall.KEY_LEN
            assert prompt.num_queries <= output_len // 2
            fits_more = recall.prompt_len(prompt.num_queries + 1, prompt.num_queries + 1)
            assert prompt.num_queries == output_len // 2 or fits_more > room


def test_a_score_counts_whole_values_in_their_places():
    prompt = recall.make_prompt(np.random.default_rng(2), 5, 3)
    right = list(prompt.answer_ids)
    assert recall.score(prompt, right) == (3, 3)
    assert recall.score(prompt, right[:5]) == (2, 2)
    assert recall.score(prompt, [*right[:3], 0, *right[4:]]) == (2, 3)
    assert recall.score(prompt, [*right[2:4], *right[:2], *right[4:]]) == (1, 3)
    assert recall.score(prompt, []) == (0, 0)


@pytest.mark.parametrize("length", [10, 64, 200])
def test_a_batch_holds_prompts_and_answers_and_says_where_to_look(length):
    rng = np.random.default_rng(3)
    batch = recall.make_batch(rng, length, 32, max_position=1280)
    assert batch.tokens.shape == (32, length + length // 4)
    for row in range(32):
        tokens, targets = batch.tokens[row], batch.targets[row]
        at = np.flatnonzero(batch.is_answer[row])
        size = int(at[0]) + 1
        prompt = bytes(tokens[:size].tolist())
        pairs, asked = parse(prompt)
        assert size <= length and len(asked) == batch.num_queries[row]
        assert bytes(targets[at].tolist()) == answer(prompt)
        assert (tokens[1:] == targets[:-1]).all()
        assert not tokens[size + len(at) :].any()
        for index, end in enumerate(size - 2 * len(asked) + 2 * np.arange(len(asked))):
            for field, key in (("own_pair", index), ("last_pair", index - 1)):
                pair = int(getattr(batch, field)[row, end])
                if key < 0:
                    assert pair == recall.NOWHERE
                else:
                    found = bytes(tokens[pair - 4 : pair + 1].tolist())
                    assert found == asked[key] + b"=" + pairs[asked[key]]
        ends = [*range(size - 2 * len(asked), size - 1, 2), size - 1]
        want = [ends[0], *np.repeat(ends[:-1], 2)[1:], ends[-1]]
        assert batch.next_query[row, at].tolist() == want


def test_positions_have_gaps_between_pairs_only():
    batch = recall.make_batch(np.random.default_rng(4), 128, 64, max_position=1280)
    gaps = np.diff(batch.positions, axis=1) - 1
    assert (gaps >= 0).all() and batch.positions.max() < 1280
    before_gap = batch.tokens[:, :-1][gaps > 0]
    assert set(before_gap.tolist()) == {ord(";")}

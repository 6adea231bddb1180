import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxkv.workloads.tokens import (
    DOCUMENT,
    FRESH,
    HASH,
    PREFIX,
    Segment,
    fresh_key,
    hash_key,
    num_key_tokens,
    prompt_ids,
)

KEYS = st.integers(0, 2**64 - 1)
VOCABULARIES = st.sampled_from([3, 17, 256, 50_257, 256_000])


def draw(*segments, vocab_size=50_000, seed=0):
    return prompt_ids(segments, vocab_size=vocab_size, seed=seed)


@given(KEYS, KEYS, VOCABULARIES, st.integers(0, 2**63 - 1))
def test_other_keys_have_other_first_tokens(a, b, vocab_size, seed):
    count = num_key_tokens(vocab_size)
    first, second = (
        draw(Segment(num_tokens=count, key=key), vocab_size=vocab_size, seed=seed)
        for key in (a, b)
    )
    assert (first == second) == (a == b)
    assert all(1 <= token < vocab_size for token in first + second)


def test_unrelated_prompts_do_not_share_a_block_of_sixteen_bytes():
    """The smallest vocabulary that is used, and the usual block."""
    segments = [Segment(num_tokens=16, key=fresh_key(i, 0)) for i in range(20_000)]
    ids = draw(*segments, vocab_size=256)
    starts = {ids[i : i + 16] for i in range(0, len(ids), 16)}
    assert len(starts) == 20_000
    assert num_key_tokens(256) == 9 and num_key_tokens(50_000) == 5


def test_a_shorter_segment_is_the_beginning_of_a_longer_one():
    longer = draw(Segment(num_tokens=100, key=7))
    assert draw(Segment(num_tokens=40, key=7)) == longer[:40]
    assert (
        draw(Segment(num_tokens=40, key=7), Segment(num_tokens=3, key=8))[:40]
        == (longer[:40])
    )


def test_segments_stand_where_they_should():
    a, b = Segment(num_tokens=5, key=1), Segment(num_tokens=4, key=2)
    known = Segment(num_tokens=3, ids=(9, 8, 7))
    assert draw(a, known, b) == draw(a) + (9, 8, 7) + draw(b)
    assert draw(known) == (9, 8, 7)
    assert known.cut(2) == Segment(num_tokens=2, ids=(9, 8))


def test_the_seed_changes_all_tokens():
    segment = Segment(num_tokens=30, key=5)
    assert draw(segment) == draw(segment)
    assert draw(segment, seed=0)[:5] != draw(segment, seed=1)[:5]


@pytest.mark.parametrize("vocab_size", [256, 50_000])
def test_tokens_are_spread_over_the_vocabulary(vocab_size):
    ids = np.array(draw(Segment(num_tokens=200_000, key=3), vocab_size=vocab_size))
    assert ids.min() >= 1 and ids.max() <= vocab_size - 1
    assert ids.mean() == pytest.approx(vocab_size / 2, rel=0.01)
    counts = np.bincount(ids * 10 // vocab_size, minlength=10)
    assert counts == pytest.approx([20_000] * 10, rel=0.10)


def test_keys_of_different_kinds_differ():
    assert len({FRESH, PREFIX, DOCUMENT, HASH}) == 4
    keys = {fresh_key(0, 0), fresh_key(0, 1), fresh_key(1, 0), PREFIX, DOCUMENT}
    keys |= {hash_key(0), hash_key(1)}
    assert len(keys) == 7
    assert all(0 <= key < 2**64 for key in (*keys, hash_key(2**64 - 1)))

"""Associative recall: the task of the shipped model, and a measure of a cache.

    prompt  k7=Qx;a3=Ab;p0=Zu;?a3k7:
    output  AbQx and a newline, the stop byte

A token is a byte. A key is a lowercase letter and a digit, a value an uppercase and a
lowercase letter; within one prompt both are distinct, and no key is asked twice. `:`
ends the queries. Only the cache knows the values, so the share of right answers says
whether every position was kept, found and read.
"""

from dataclasses import dataclass

import numpy as np

NUM_KEYS = 26 * 10
NUM_VALUES = 26 * 26
PAIR_LEN = 6  # tokens of `k7=Qx;`
KEY_LEN = 2  # tokens
VALUE_LEN = 2  # tokens
FRAME_LEN = 2  # tokens of `?` and `:`
VOCAB_SIZE = 256
STOP_ID = ord("\n")
NOWHERE = -1  # in the index arrays of `RecallBatch`


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallPrompt:
    """One prompt and what has to follow it."""

    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]  # ends with STOP_ID
    num_pairs: int
    num_queries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallBatch:
    """Sequences of prompt and answer, padded with zeros. Arrays are [batch, T].

    Three arrays hold the indices of tokens that a reader should look up, or NOWHERE.
    At the last token of a queried key, `own_pair` is the last value byte of its pair and
    `last_pair` that of the key asked before it. Where an answer byte comes next,
    `next_query` is the last token of the key it answers, or the `:` when all are.
    """

    tokens: np.ndarray  # int32
    targets: np.ndarray  # int32, the next token
    positions: np.ndarray  # int32, increasing, with gaps between pairs in some rows
    is_answer: np.ndarray  # bool, where `targets` is a value byte or the stop byte
    own_pair: np.ndarray  # int32 or NOWHERE
    last_pair: np.ndarray  # int32 or NOWHERE
    next_query: np.ndarray  # int32 or NOWHERE
    num_queries: np.ndarray  # int32 [batch]


def _key_bytes(key: np.ndarray) -> np.ndarray:
    return np.stack([ord("a") + key // 10, ord("0") + key % 10], axis=-1)


def _value_bytes(value: np.ndarray) -> np.ndarray:
    return np.stack([ord("A") + value // 26, ord("a") + value % 26], axis=-1)


def prompt_len(num_pairs: int, num_queries: int) -> int:
    """Tokens of a prompt."""
    return PAIR_LEN * num_pairs + KEY_LEN * num_queries + FRAME_LEN


def sequence_len(longest_prompt: int) -> int:
    """Tokens of the longest prompt and the longest answer to it, a quarter of that."""
    return longest_prompt + longest_prompt // 4


def make_prompt(rng: np.random.Generator, num_pairs: int, num_queries: int) -> RecallPrompt:
    """Draws keys, values and queries; `rng` is advanced."""
    if not 1 <= num_queries <= num_pairs <= NUM_KEYS:
        raise ValueError(
            f"{num_queries=} and {num_pairs=} must satisfy "
            f"1 <= num_queries <= num_pairs <= {NUM_KEYS}."
        )
    keys = _key_bytes(rng.permutation(NUM_KEYS)[:num_pairs])
    values = _value_bytes(rng.permutation(NUM_VALUES)[:num_pairs])
    asked = rng.permutation(num_pairs)[:num_queries]
    pairs = b"".join(
        bytes(key.tolist()) + b"=" + bytes(value.tolist()) + b";"
        for key, value in zip(keys, values, strict=True)
    )
    queries = bytes(keys[asked].ravel().tolist())
    return RecallPrompt(
        prompt_ids=tuple(pairs + b"?" + queries + b":"),
        answer_ids=(*values[asked].ravel().tolist(), STOP_ID),
        num_pairs=num_pairs,
        num_queries=num_queries,
    )


def fill_prompt(
    rng: np.random.Generator, prompt_len: int, output_len: int
) -> tuple[RecallPrompt, bool]:
    """A prompt of at most `prompt_len` tokens for an output of `output_len` tokens.

    It holds as many queries as the output can answer and the pairs can serve, and
    pairs in the room left. Returns also whether a length had to be raised to that of
    one pair, one query and its answer.
    """
    shortest = PAIR_LEN + KEY_LEN + FRAME_LEN
    room = max(prompt_len, shortest) - FRAME_LEN
    num_queries = max(
        1, min(output_len // VALUE_LEN, room // (PAIR_LEN + KEY_LEN), NUM_KEYS)
    )
    num_pairs = min((room - KEY_LEN * num_queries) // PAIR_LEN, NUM_KEYS)
    raised = prompt_len < shortest or output_len < VALUE_LEN
    return make_prompt(rng, num_pairs, num_queries), raised


def score(prompt: RecallPrompt, output_ids: list[int]) -> tuple[int, int]:
    """Returns how many queried keys were answered right, and how many at all.

    A key is answered if the output is long enough to hold its value, and right if
    both bytes are.
    """
    num_answered = min(len(output_ids) // VALUE_LEN, prompt.num_queries)
    size = num_answered * VALUE_LEN
    got = np.asarray(output_ids[:size], np.int64).reshape(-1, VALUE_LEN)
    want = np.asarray(prompt.answer_ids[:size], np.int64).reshape(-1, VALUE_LEN)
    return int((got == want).all(axis=1).sum()), num_answered


def _draw_counts(
    rng: np.random.Generator, length: int, batch: int
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs and queries per row; three rows of four fill `length` tokens of prompt."""
    room = length - FRAME_LEN
    ratio = rng.random(batch)  # queries per pair
    full = np.maximum(1, room / (PAIR_LEN + KEY_LEN * ratio)).astype(np.int64)
    fewer = np.exp(rng.random(batch) * np.log(full + 0.999)).astype(np.int64)
    num_pairs = np.where(rng.random(batch) < 0.75, full, fewer)
    num_pairs = np.minimum(num_pairs, NUM_KEYS)
    most = np.minimum(num_pairs, (room - PAIR_LEN * num_pairs) // KEY_LEN)
    num_queries = np.where(rng.random(batch) < 0.7, most, ratio * most)
    return num_pairs, np.maximum(1, num_queries.astype(np.int64))


def make_batch(
    rng: np.random.Generator, length: int, batch: int, max_position: int
) -> RecallBatch:
    """Draws sequences whose prompts have at most `length` tokens; `rng` is advanced.

    T is `sequence_len(length)`. Half of the rows spread their pairs over positions up
    to `max_position`, so that short sequences teach long distances.
    """
    size = sequence_len(length)
    num_pairs, num_queries = _draw_counts(rng, length, batch)
    most = int(num_pairs.max())
    rows = np.arange(batch)[:, None]
    keys = _key_bytes(rng.random((batch, NUM_KEYS)).argsort(axis=1)[:, :most])
    values = _value_bytes(rng.random((batch, NUM_VALUES)).argsort(axis=1)[:, :most])
    order = rng.random((batch, most))
    order[np.arange(most) >= num_pairs[:, None]] = 2.0  # absent pairs come last
    asked = order.argsort(axis=1)
    pairs = np.empty((batch, most, PAIR_LEN), np.int64)
    pairs[..., 0:2], pairs[..., 2] = keys, ord("=")
    pairs[..., 3:5], pairs[..., 5] = values, ord(";")
    pairs = pairs.reshape(batch, -1)
    queries = keys[rows, asked].reshape(batch, -1)
    answers = values[rows, asked].reshape(batch, -1)

    at = np.arange(size + 1)[None, :]
    mark = PAIR_LEN * num_pairs[:, None]  # of `?`
    colon = mark + 1 + KEY_LEN * num_queries[:, None]
    stop = colon + 1 + VALUE_LEN * num_queries[:, None]
    ids = np.select(
        [at < mark, at == mark, at < colon, at == colon, at < stop, at == stop],
        [
            _take(pairs, at),
            np.full_like(at, ord("?")),
            _take(queries, at - mark - 1),
            np.full_like(at, ord(":")),
            _take(answers, at - colon - 1),
            np.full_like(at, STOP_ID),
        ],
        default=0,
    ).astype(np.int32)
    at = at[:, :-1]
    own_pair, last_pair, next_query = _lookups(at, mark, colon, stop, asked)
    pair_starts = (at % PAIR_LEN == 0) & (at <= mark) & (at > 0)
    return RecallBatch(
        tokens=ids[:, :-1],
        targets=ids[:, 1:],
        positions=_spread_positions(rng, pair_starts, max_position),
        is_answer=(at >= colon) & (at < stop),
        own_pair=own_pair,
        last_pair=last_pair,
        next_query=next_query,
        num_queries=num_queries.astype(np.int32),
    )


def _take(table: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Entries of each row; an index outside of it gives its first or last."""
    return np.take_along_axis(table, np.clip(index, 0, table.shape[1] - 1), axis=1)


def _lookups(
    at: np.ndarray,
    mark: np.ndarray,
    colon: np.ndarray,
    stop: np.ndarray,
    asked: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`own_pair`, `last_pair` and `next_query` of a `RecallBatch`.

    Args:
      at: index of each token [1, T].
      mark, colon, stop: indices of `?`, `:` and the stop byte [batch, 1].
      asked: queried pairs in order [batch, pairs].
    """
    # `:` stands for one more query, which asks for the stop byte
    num_queries = (colon - mark - 1) // KEY_LEN
    query = np.where(at == colon, num_queries, (at - mark - 2) // KEY_LEN)
    here = (at > mark) & (at <= colon) & (((at - mark) % KEY_LEN == 0) | (at == colon))
    value_end = PAIR_LEN - 2  # of a pair: its last value byte
    next_end = mark + KEY_LEN * ((at - colon) // VALUE_LEN + 1)

    def only(where: np.ndarray, index: np.ndarray) -> np.ndarray:
        return np.where(where, index, NOWHERE).astype(np.int32)

    return (
        only(here & (at < colon), PAIR_LEN * _take(asked, query) + value_end),
        only(here & (query > 0), PAIR_LEN * _take(asked, query - 1) + value_end),
        only((at >= colon) & (at < stop), np.minimum(next_end, colon)),
    )


def _spread_positions(
    rng: np.random.Generator, pair_starts: np.ndarray, max_position: int
) -> np.ndarray:
    """int32 [batch, T]; half of the rows have gaps before pairs. `rng` is advanced."""
    batch, size = pair_starts.shape
    gap_scale = 2.0 * (max_position - size) * rng.random((batch, 1))
    gap_scale *= (rng.random((batch, 1)) < 0.5) / pair_starts.sum(axis=1, keepdims=True)
    gaps = np.floor(pair_starts * gap_scale * rng.random((batch, size))).astype(np.int64)
    positions = np.minimum(gaps.cumsum(axis=1), max_position - size) + np.arange(size)
    return positions.astype(np.int32)

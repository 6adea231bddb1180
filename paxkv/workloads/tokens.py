"""Token ids of prompts that share exactly what they are meant to share.

A prompt is made of segments. Segments with the same key have the same tokens; those with
different keys differ within their first `num_key_tokens` tokens, for sure and not only
probably. So unrelated prompts never share their first block, if it has so many tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt64

NAMESPACE_BITS = 60  # keys below 2**60 in each namespace
FRESH, PREFIX, DOCUMENT, HASH = (number << NAMESPACE_BITS for number in range(4))
SEGMENTS_PER_SESSION = 2**20
_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
MIN_VOCAB_SIZE = 3  # token 0 is padding in many models; the others tell prompts apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A piece of a prompt."""

    num_tokens: int
    key: int = 0  # of tokens to be drawn, below 2**64
    ids: tuple[int, ...] = ()  # tokens that are known; then `num_tokens` of them

    def cut(self, num_tokens: int) -> "Segment":
        """The first `num_tokens` tokens."""
        return Segment(num_tokens=num_tokens, key=self.key, ids=self.ids[:num_tokens])


def fresh_key(session: int, index: int) -> int:
    """Of tokens that nothing shares: the `index`-th segment of a session."""
    return FRESH + session * SEGMENTS_PER_SESSION + index


def hash_key(hash_id: int) -> int:
    """Of the tokens that a trace knows by a hash."""
    return HASH + hash_id % 2**NAMESPACE_BITS


def num_key_tokens(vocab_size: int) -> int:
    """Tokens within which segments of different keys differ; 5 at 50,000, 9 at 256."""
    return math.ceil(64 / math.log2(vocab_size - 1))


def prompt_ids(
    segments: Sequence[Segment], *, vocab_size: int, seed: int
) -> tuple[int, ...]:
    """Ids in [1, vocab_size): a function of the keys and the seed."""
    drawn = [segment for segment in segments if not segment.ids]
    ids = _draw(drawn, vocab_size, seed).tolist()
    if len(drawn) == len(segments):
        return tuple(ids)
    joined: list[int] = []
    start = 0
    for segment in segments:
        if segment.ids:
            joined += segment.ids
        else:
            joined += ids[start : start + segment.num_tokens]
            start += segment.num_tokens
    return tuple(joined)


def _draw(
    segments: Sequence[Segment], vocab_size: int, seed: int
) -> UInt64[np.ndarray, "_"]:
    counts = np.asarray([segment.num_tokens for segment in segments], np.int64)
    keys = np.asarray([segment.key for segment in segments], np.uint64)
    offset = np.asarray([seed], np.uint64)
    mixed = np.repeat(_mix(keys ^ _mix(offset)), counts)
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    position = (np.arange(len(mixed)) - starts).astype(np.uint64)
    base = np.uint64(vocab_size - 1)
    half = np.uint64(
        32
    )  # (upper half * base) >> 32 is below base, and faster than a modulo
    ids = ((_mix(mixed + position * _INCREMENT) >> half) * base) >> half
    # the first tokens spell the mixed key, which no other key has: mixing is a bijection
    num_digits = num_key_tokens(vocab_size)
    is_digit = position < num_digits
    powers = np.asarray([(vocab_size - 1) ** i for i in range(num_digits)], np.uint64)
    ids[is_digit] = mixed[is_digit] // powers[position[is_digit]] % base
    return ids + np.uint64(1)


def _mix(values: UInt64[np.ndarray, "_"]) -> UInt64[np.ndarray, "_"]:
    """SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): a bijection of 64 bits."""
    values = values + _INCREMENT
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))

"""A step as the numbers that its measured time is a sum of.

Real steps run in padded shapes (`paxkv.step_inputs`), and a shape's cost counts more than
what fills it: the features have the padded sizes too. Steps of single tokens and all
others are different programs, with coefficients of their own.
"""

import bisect
from dataclasses import dataclass

from paxkv.simulation.work import StepWork

_PER_GROUP_DECODE = ("context_tokens",)
_PER_GROUP_MIXED = ("decode_context_tokens", "prefill_pairs", "prefill_context_tokens")
MOVES = ("swapped_out_blocks", "swapped_in_blocks", "loaded_blocks", "copied_blocks")
NUM_SWAPS = 3  # of the moves, the first


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedSizes:
    """The sizes of `paxkv.step_inputs.Buckets`, which loads jax; a test compares them."""

    decode_seqs: tuple[int, ...]
    mixed_tokens: tuple[int, ...]


def padded_sizes(max_num_seqs: int, max_num_batched_tokens: int) -> PaddedSizes:
    """Decode shapes double from 8 sequences on, mixed ones grow fourfold from 64 tokens or
    one more than the rows."""
    return PaddedSizes(
        decode_seqs=_growing(8, max_num_seqs, 2),
        mixed_tokens=_growing(max(64, max_num_seqs + 1), max_num_batched_tokens, 4),
    )


def _growing(smallest: int, largest: int, ratio: int) -> tuple[int, ...]:
    sizes = []
    size = smallest
    while size < largest:
        sizes.append(size)
        size *= ratio
    return (*sizes, max(largest, smallest))


def feature_names(num_groups: int) -> tuple[str, ...]:
    """Of `decode_features`, then `mixed_features`, then the moves."""
    groups = range(num_groups)
    return (
        "decode_program",
        "decode_padded_seqs",
        "decode_seqs",
        *(f"decode_{name}_{group}" for name in _PER_GROUP_DECODE for group in groups),
        "mixed_program",
        "mixed_padded_tokens",
        "mixed_tokens",
        "mixed_seqs",
        *(f"mixed_{name}_{group}" for name in _PER_GROUP_MIXED for group in groups),
        *MOVES,
    )


def is_decode_shape(work: StepWork) -> bool:
    """Whether every slice has one token."""
    return work.num_decode_tokens + work.num_prefill_tokens == work.num_seqs


def decode_features(
    sizes: PaddedSizes, num_seqs: int, context_tokens: tuple[int, ...]
) -> tuple[int, ...]:
    """Of a step of single tokens."""
    return (1, _at_least(sizes.decode_seqs, num_seqs), num_seqs, *context_tokens)


def mixed_features(sizes: PaddedSizes, work: StepWork) -> tuple[int, ...]:
    """Of a step that has longer slices too."""
    num_tokens = work.num_decode_tokens + work.num_prefill_tokens
    return (
        1,
        _at_least(sizes.mixed_tokens, num_tokens),
        num_tokens,
        work.num_seqs,
        *work.decode_context_tokens,
        *work.prefill_pairs,
        *work.prefill_context_tokens,
    )


def move_features(work: StepWork) -> tuple[int, ...]:
    """In the order of MOVES."""
    return (
        work.num_swapped_out_blocks,
        work.num_swapped_in_blocks,
        work.num_loaded_blocks,
        work.num_copied_blocks,
    )


def step_features(sizes: PaddedSizes, work: StepWork) -> tuple[int, ...]:
    """In the order of `feature_names`."""
    num_groups = len(work.decode_context_tokens)
    decode: tuple[int, ...] = (0,) * (3 + len(_PER_GROUP_DECODE) * num_groups)
    mixed: tuple[int, ...] = (0,) * (4 + len(_PER_GROUP_MIXED) * num_groups)
    if work.num_seqs and is_decode_shape(work):
        decode = decode_features(sizes, work.num_seqs, all_context(work))
    elif work.num_seqs:
        mixed = mixed_features(sizes, work)
    return (*decode, *mixed, *move_features(work))


def all_context(work: StepWork) -> tuple[int, ...]:
    """Positions that decodes and one-token chunks attend to, per cache group."""
    both = zip(work.decode_context_tokens, work.prefill_context_tokens, strict=True)
    return tuple(decode + prefill for decode, prefill in both)


def host_feature_names() -> tuple[str, ...]:
    """Of `host_features`."""
    return ("step", "seqs", "mixed_step", "prefill_tokens")


def host_features(work: StepWork) -> tuple[int, ...]:
    """What planning and committing a step take."""
    is_mixed = int(not is_decode_shape(work))
    return (1, work.num_seqs, is_mixed, work.num_prefill_tokens)


def _at_least(sizes: tuple[int, ...], count: int) -> int:
    """The smallest size that holds `count`; the largest, where none does."""
    return sizes[min(bisect.bisect_left(sizes, count), len(sizes) - 1)]

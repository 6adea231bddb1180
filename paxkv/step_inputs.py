"""`pack`: a plan as padded arrays. The only place that knows padding (DESIGN §2)."""

import bisect
from dataclasses import dataclass

import chex
import numpy as np
from jaxtyping import Int32

from paxkv.sampling import HostOrDevice
from paxkv.types import Plan

SMALLEST_DECODE_BUCKET = 8  # sequences
SMALLEST_MIXED_BUCKET = 64  # tokens


@chex.dataclass(frozen=True)
class StepInputs:
    """One ragged batch. Sequence s owns tokens [query_starts[s], query_starts[s + 1]).

    Tuples hold one array per cache group. Padded tokens write to slot 0 of the null
    block; padded sequences have context length 0.
    """

    tokens: Int32[HostOrDevice, "T"]
    positions: Int32[HostOrDevice, "T"]
    targets: Int32[HostOrDevice, "U"]  # next prompt tokens, or none
    slots: tuple[Int32[HostOrDevice, "T"], ...]
    block_tables: tuple[Int32[HostOrDevice, "S P"], ...]
    context_lens: Int32[HostOrDevice, "S"]
    query_starts: Int32[HostOrDevice, "S1"]
    num_seqs: Int32[HostOrDevice, "1"]
    last_tokens: Int32[HostOrDevice, "S"]  # index in T of the last token
    adapter_ids: Int32[HostOrDevice, "T"] | None = None  # None: no adapters are loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """Padded sizes of a step. Pure decode is the shape with as many tokens as rows."""

    num_tokens: int
    num_seqs: int

    @property
    def is_decode(self) -> bool:
        return self.num_tokens == self.num_seqs


def _doublings(smallest: int, largest: int, ratio: int) -> tuple[int, ...]:
    """`smallest`, `smallest`·ratio, ... up to `largest`; `smallest` alone if larger."""
    sizes = []
    size = smallest
    while size < largest:
        sizes.append(size)
        size *= ratio
    return (*sizes, max(largest, smallest))


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """The few shapes a step may have: each is one compiled program."""

    decode_seqs: tuple[int, ...]
    mixed_tokens: tuple[int, ...]

    @property
    def shapes(self) -> tuple[StepShape, ...]:
        """All of them: decode, then mixed."""
        decode = [StepShape(num_tokens=s, num_seqs=s) for s in self.decode_seqs]
        mixed = [self._mixed(t) for t in self.mixed_tokens]
        return tuple(decode + mixed)

    def _mixed(self, num_tokens: int) -> StepShape:
        return StepShape(num_tokens=num_tokens, num_seqs=self.decode_seqs[-1])

    def shape_for(self, lengths: np.ndarray) -> StepShape:
        """The smallest shape that holds slices of these lengths."""
        num_seqs, num_tokens = len(lengths), int(lengths.sum())
        if num_tokens == num_seqs:
            size = self.decode_seqs[bisect.bisect_left(self.decode_seqs, num_seqs)]
            return StepShape(num_tokens=size, num_seqs=size)
        size = self.mixed_tokens[bisect.bisect_left(self.mixed_tokens, num_tokens)]
        return self._mixed(size)


def make_buckets(max_num_seqs: int, max_num_batched_tokens: int) -> Buckets:
    """Decode shapes double up to `max_num_seqs`; mixed shapes grow fourfold.

    A mixed shape always has more tokens than rows, so that it cannot be taken for a
    decode shape.
    """
    smallest = max(SMALLEST_MIXED_BUCKET, max_num_seqs + 1)
    return Buckets(
        decode_seqs=_doublings(SMALLEST_DECODE_BUCKET, max_num_seqs, 2),
        mixed_tokens=_doublings(smallest, max_num_batched_tokens, 4),
    )


def pack(
    plan: Plan,
    shape: StepShape,
    block_sizes: tuple[int, ...],
    with_targets: bool,
    row_adapters: Int32[np.ndarray, "rows"] | None = None,
) -> StepInputs:
    """Gathers the plan's tokens and tables into arrays of `shape`; host NumPy only.

    `block_sizes` has one entry per cache group. `with_targets` adds the token that
    follows each position, for prompt log-probabilities. `row_adapters` has the number of
    each row's adapter; padded tokens use none.
    """
    rows, starts, lengths = plan.rows, plan.starts, plan.lengths
    num_seqs, num_tokens = len(rows), int(lengths.sum())
    query_starts = np.full(shape.num_seqs + 1, num_tokens, np.int32)
    query_starts[0] = 0
    np.cumsum(lengths, out=query_starts[1 : num_seqs + 1])

    if num_tokens == num_seqs:  # all slices have length 1
        token_rows, token_positions = rows, starts
    else:
        token_rows = np.repeat(rows, lengths)
        offsets = np.arange(num_tokens, dtype=np.int32) - np.repeat(
            query_starts[:num_seqs], lengths
        )
        token_positions = np.repeat(starts, lengths) + offsets

    tokens = np.zeros(shape.num_tokens, np.int32)
    positions = np.zeros(shape.num_tokens, np.int32)
    tokens[:num_tokens] = plan.tables.tokens[token_rows, token_positions]
    positions[:num_tokens] = token_positions
    targets = np.zeros(shape.num_tokens if with_targets else 0, np.int32)
    if with_targets:
        targets[:num_tokens] = plan.tables.tokens[token_rows, token_positions + 1]

    adapter_ids = None
    if row_adapters is not None:
        adapter_ids = np.zeros(shape.num_tokens, np.int32)
        adapter_ids[:num_tokens] = row_adapters[token_rows]

    context_lens = np.zeros(shape.num_seqs, np.int32)
    context_lens[:num_seqs] = starts + lengths
    last_tokens = np.zeros(shape.num_seqs, np.int32)
    last_tokens[:num_seqs] = query_starts[1 : num_seqs + 1] - 1

    # K/V of these positions is in blocks that others share: it goes to the null block
    is_written = token_positions >= plan.tables.first_write[token_rows]
    slots, block_tables = [], []
    for table, block_size in zip(plan.tables.block_tables, block_sizes, strict=True):
        indices, offsets = np.divmod(token_positions, block_size)
        blocks = table[token_rows, indices]
        group_slots = np.zeros(shape.num_tokens, np.int32)
        of_tokens = blocks * block_size + offsets
        group_slots[:num_tokens] = np.where(is_written, of_tokens, 0)
        slots.append(group_slots)
        group_table = np.zeros((shape.num_seqs, table.shape[1]), np.int32)
        np.take(table, rows, axis=0, out=group_table[:num_seqs], mode="clip")
        block_tables.append(group_table)

    return StepInputs(
        tokens=tokens,
        positions=positions,
        targets=targets,
        slots=tuple(slots),
        block_tables=tuple(block_tables),
        context_lens=context_lens,
        query_starts=query_starts,
        num_seqs=np.asarray([num_seqs], np.int32),
        last_tokens=last_tokens,
        adapter_ids=adapter_ids,
    )

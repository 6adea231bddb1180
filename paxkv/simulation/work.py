"""What a step asks of a device, in counts, and what that costs, in seconds."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool

from paxkv.moves import CopyBlock, Load, SwapIn, SwapOut
from paxkv.types import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """Sums over the slices and moves of one plan. Tuples have an entry per cache group.

    A decode is a slice of one token that follows its prompt; all others are prefill.
    """

    num_seqs: int  # slices
    num_decode_tokens: int
    num_prefill_tokens: int
    decode_context_tokens: tuple[int, ...]  # positions that decodes attend to
    decode_read_tokens: tuple[int, ...]  # the same in whole blocks, as kernels read them
    prefill_pairs: tuple[int, ...]  # of a query and a position that it attends to
    prefill_context_tokens: tuple[int, ...]  # positions that prefill slices attend to
    num_copied_blocks: int = 0  # of any group, as the three below
    num_swapped_out_blocks: int = 0
    num_swapped_in_blocks: int = 0
    num_loaded_blocks: int = 0  # from disk


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeconds:
    """Where the time of a step goes. What one pass over the weights serves belongs to the
    decodes; prefill has what its tokens add."""

    decode_s: float = 0.0
    prefill_s: float = 0.0
    swap_s: float = 0.0  # to and from the host and disk
    copy_s: float = 0.0  # within the pool
    communication_s: float = 0.0  # between chips
    host_s: float = 0.0  # planning, packing, committing

    @property
    def total_s(self) -> float:
        return (
            self.decode_s
            + self.prefill_s
            + self.swap_s
            + self.copy_s
            + self.communication_s
            + self.host_s
        )

    def plus(self, other: "StepSeconds") -> "StepSeconds":
        """Of two steps together."""
        return StepSeconds(
            decode_s=self.decode_s + other.decode_s,
            prefill_s=self.prefill_s + other.prefill_s,
            swap_s=self.swap_s + other.swap_s,
            copy_s=self.copy_s + other.copy_s,
            communication_s=self.communication_s + other.communication_s,
            host_s=self.host_s + other.host_s,
        )

    def scaled(self, factor: float) -> "StepSeconds":
        """The same shares of another total."""
        return StepSeconds(**{f.name: getattr(self, f.name) * factor for f in fields(self)})


@runtime_checkable
class CostModel(Protocol):
    """Seconds of a step on some device."""

    def seconds(self, work: StepWork) -> StepSeconds: ...


def step_work(
    plan: Plan, block_size: int, windows: Sequence[int | None] = (None,)
) -> StepWork:
    """Counts the work of a plan.

    Args:
      windows: per cache group, tokens that a position sees; None: all.
    """
    lengths, starts = plan.lengths, plan.starts
    ends = starts + lengths
    if plan.num_prefill_tokens:
        is_decode = decode_slices(plan)
        decode_ends = ends[is_decode]
        first, new = starts[~is_decode], lengths[~is_decode]
    else:
        decode_ends, first, new = ends, starts[:0], lengths[:0]
    moves = [type(move) for move in plan.moves]
    context, read, pairs, prefill_context = [], [], [], []
    for window in windows:
        context.append(int(_seen(decode_ends, window).sum()))
        read.append(_in_blocks(decode_ends, window, block_size))
        pairs.append(_pairs(first.astype(np.int64), new.astype(np.int64), window))
        prefill_context.append(int(_seen(first + new, window, new).sum()))
    return StepWork(
        num_seqs=len(lengths),
        num_decode_tokens=plan.num_decode_tokens,
        num_prefill_tokens=plan.num_prefill_tokens,
        decode_context_tokens=tuple(context),
        decode_read_tokens=tuple(read),
        prefill_pairs=tuple(pairs),
        prefill_context_tokens=tuple(prefill_context),
        num_copied_blocks=moves.count(CopyBlock),
        num_swapped_out_blocks=moves.count(SwapOut),
        num_swapped_in_blocks=moves.count(SwapIn),
        num_loaded_blocks=moves.count(Load),
    )


def decode_slices(plan: Plan) -> Bool[np.ndarray, "n"]:
    """Which slices are decodes; of a plan that was not committed yet."""
    follows_prompt = plan.starts >= plan.tables.num_prompt_tokens[plan.rows]
    return plan.samples & follows_prompt & (plan.lengths == 1)


def _seen(ends: np.ndarray, window: int | None, new: np.ndarray | int = 1) -> np.ndarray:
    """Positions that the last `new` of `ends` positions see together."""
    return ends if window is None else np.minimum(ends, window + new - 1)


def _in_blocks(ends: np.ndarray, window: int | None, block_size: int) -> int:
    """Positions of the blocks that hold what decodes see."""
    blocks = -(-ends // block_size)
    if window is not None:
        blocks = blocks - np.maximum(ends - window, 0) // block_size
    return int(blocks.sum()) * block_size


def _pairs(first: np.ndarray, new: np.ndarray, window: int | None) -> int:
    """Causal pairs of the queries at [first, first + new) and the positions they see."""

    def up_to(count: np.ndarray) -> np.ndarray:
        """Pairs of the first `count` queries of a sequence."""
        if window is None:
            return count * (count + 1) // 2
        inside = np.minimum(count, window)
        return inside * (inside + 1) // 2 + (count - inside) * window

    return int((up_to(first + new) - up_to(first)).sum())

"""The state of every position of a pool, each in exactly one class (DESIGN §4)."""

import numpy as np
from jaxtyping import Int32

from paxkv.allocators import Allocator
from paxkv.moves import CopyBlock, SwapIn, SwapOut
from paxkv.sequence_tables import SequenceTables
from paxkv.types import Plan, PoolPartition, StepMetrics


def partition_pool(
    allocator: Allocator,
    tables: SequenceTables,
    rows: Int32[np.ndarray, "S"],
    computed_tokens: Int32[np.ndarray, "S"],
    *,
    head_refused: bool,
    group: int,
) -> PoolPartition:
    """Sorts all (num_blocks - 1)·block_size positions; the work grows with `rows` only.

    Args:
      rows: of the sequences that hold blocks.
      computed_tokens: K/V that each of them has.
      head_refused: the allocator had no room for the head of the queue.
    """
    usage, size = allocator.usage(group), allocator.block_size
    counts = tables.num_blocks[group][rows]
    if usage.regions is None:
        used = usage.num_blocks - 1 - usage.num_available
        ends = np.maximum(computed_tokens, tables.first_write[rows])
        unfilled = counts * size - ends
        if allocator.shares_tails:  # a last block that several rows share has one tail
            last = tables.block_tables[group][rows, counts - 1]
            unfilled = unfilled[np.unique(last, return_index=True)[1]]
        tail = int(unfilled.sum())
        return PoolPartition(
            token_states=used * size - tail,
            tail=tail,
            reserved=0,
            internal=0,
            rounding=0,
            cached=usage.num_cached * size,
            free=usage.num_free * size,
            unusable_free=0,  # any free block serves any sequence
            logical=int((counts - tables.num_behind[group][rows]).sum()) * size,
        )
    token_states = int(computed_tokens.sum())
    free = usage.num_free * size
    regions = usage.regions
    num_regions = 1 + regions.num_spares[rows]
    in_tables = int((counts * num_regions).sum()) * size
    held = int((regions.num_blocks[rows] * num_regions).sum()) * size
    promised = int((regions.reserved_tokens[rows] * num_regions).sum())
    final = int((regions.final_tokens[rows] * num_regions).sum())
    return PoolPartition(
        token_states=token_states,
        tail=in_tables - promised,
        reserved=final - token_states,
        internal=promised - final,
        rounding=held - in_tables,
        cached=0,
        free=free,
        unusable_free=free if head_refused else 0,
        logical=held,  # regions are nobody else's
    )


def step_metrics(plan: Plan, duration_s: float, table_bytes: int) -> StepMetrics:
    """The record of a step that took the executor `duration_s`; host time not yet."""
    return StepMetrics(
        step=plan.step,
        now_s=plan.now_s,
        duration_s=duration_s,
        host_s=0.0,
        num_prefill_tokens=plan.num_prefill_tokens,
        num_decode_tokens=plan.num_decode_tokens,
        num_running=plan.num_running,
        num_waiting=plan.num_waiting,
        num_preempted=plan.num_preempted,
        partitions=plan.partitions,
        table_bytes=table_bytes,
        num_duplicate_blocks=plan.num_duplicate_blocks,
        num_copied_blocks=_count(plan, CopyBlock),
        num_swapped_out_blocks=_count(plan, SwapOut),
        num_swapped_in_blocks=_count(plan, SwapIn),
    )


def _count(plan: Plan, kind: type) -> int:
    return sum(isinstance(move, kind) for move in plan.moves)

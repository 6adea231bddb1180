"""Steps that only decode, taken at once: between two decisions nothing else changes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Int32

from paxkv.allocators import Allocator
from paxkv.config import SchedulerConfig
from paxkv.delivering import Delivering
from paxkv.events import EventKind
from paxkv.journal import Journal
from paxkv.policies.chosen import Policies
from paxkv.running import Running
from paxkv.types import Plan, PoolPartition, RequestUpdate, StepMetrics
from paxkv.waiting import WaitingQueue


class Repeating:
    """What a scheduler would do in the steps after one that was just committed, as long as
    these give each running sequence its next token and do nothing else."""

    def __init__(
        self,
        running: Running,
        waiting: WaitingQueue,
        delivering: Delivering,
        policies: Policies,
        config: SchedulerConfig,
    ):
        self._running = running
        self._waiting = waiting
        self._delivering = delivering
        self._policies = policies
        self._config = config

    @property
    def _allocator(self) -> Allocator:
        return self._running.allocator

    def count(self, plan: Plan) -> int:
        """How many such steps follow `plan`, if nobody comes: until a sequence comes
        to another block, or ends."""
        running, allocator = self._running, self._allocator
        rows, tables = running.rows, running.tables
        if not (
            len(rows)
            and plan.samples.all()
            and np.array_equal(plan.rows, rows)
            and len(rows) <= self._config.max_num_batched_tokens
        ):
            return 0
        stays = not (
            len(self._waiting)
            or self._delivering.has_forked
            or self._config.preempt_every
            or allocator.shares_tails
            or allocator.journal.has_moves
            or running.swapper is not None  # transfers land some steps later
        )
        if not stays:
            return 0
        size, computed = allocator.block_size, tables.num_computed[rows]
        # the last token of a block makes it one that others may find
        in_block = size - computed % size - (allocator.prefixes is not None)
        most = min(self._delivering.tokens_left(rows).min() - 1, in_block.min())
        for num_blocks in tables.num_blocks:
            most = min(most, (num_blocks[rows] * size - computed).min())
        return max(int(most), 0)

    def commit(
        self,
        before: StepMetrics,
        steps: Sequence[tuple[float, float, float, float]],
        token_ids: Int32[np.ndarray, "S"],
    ) -> tuple[list[StepMetrics], list[RequestUpdate]]:
        """Takes in steps after the one of `before`, in which each sampled its token of
        `token_ids`.

        Args:
          steps: of each: when it was planned and committed, the executor's duration, and
            the host's.
        """
        running, tables, journal = self._running, self._running.tables, self._journal
        rows, requests = running.rows, running.requests
        metrics = []
        for index, (now_s, _, duration_s, host_s) in enumerate(steps, 1):
            journal.step += 1
            journal.now_s = now_s
            self._policies.admission.step_planned()
            journal.emit(EventKind.STEP, num_tokens=len(rows), duration_s=duration_s)
            metrics.append(
                replace(
                    before,
                    step=journal.step,
                    now_s=now_s,
                    duration_s=duration_s,
                    host_s=host_s,
                    num_prefill_tokens=0,
                    num_decode_tokens=len(rows),
                    num_running=len(rows),
                    num_preempted=0,
                    num_copied_blocks=0,
                    num_swapped_out_blocks=0,
                    num_swapped_in_blocks=0,
                    partitions=tuple(
                        self._later(part, group, index * len(rows))
                        for group, part in enumerate(before.partitions)
                    ),
                )
            )
        self._allocator.set_now(journal.now_s)
        count, ends_s = len(steps), [end_s for _, end_s, _, _ in steps]
        columns = tables.num_tokens[rows][:, None] + np.arange(count)
        tables.tokens[rows[:, None], columns] = token_ids[:, None]
        tables.num_tokens[rows] += count
        tables.num_computed[rows] += count
        updates = []
        for request, token_id in zip(requests, token_ids.tolist(), strict=True):
            new_ids = (token_id,) * count
            request.output_ids.extend(new_ids)
            request.token_times_s.extend(ends_s)
            updates.append(RequestUpdate(request.request_id, new_ids))
        return metrics, updates

    @property
    def _journal(self) -> Journal:
        return self._allocator.journal

    def _later(self, part: PoolPartition, group: int, num_new: int) -> PoolPartition:
        """With so many more tokens in the blocks that sequences hold."""
        states = part.token_states + num_new
        if self._allocator.usage(group).regions is None:
            return replace(part, token_states=states, tail=part.tail - num_new)
        return replace(part, token_states=states, reserved=part.reserved - num_new)

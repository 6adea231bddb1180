"""Steps that only decode, taken at once: between two decisions nothing else changes."""

from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedStep:
    """When a step was planned and committed, and whose time that was."""

    now_s: float
    end_s: float
    duration_s: float  # the executor's
    host_s: float


class Repeating:
    """What a scheduler would do in the steps after one that was just committed, as long as
    these give each running sequence its next token.

    Such steps come in stretches: `begin` gives all sequences the block of their next token,
    as planning does; `commit` takes in the steps until the first of them fills one.
    """

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
        self._partitions: tuple[PoolPartition, ...] = ()  # after the stretch's first step
        self._num_duplicates = 0
        self._head_refused = False  # in steps to come
        self._has_regions = running.allocator.usage(0).regions is not None

    def may_follow(self, plan: Plan) -> bool:
        """Nothing but decoding is to be done until a sequence ends or another comes."""
        running, allocator = self._running, self._allocator
        prefixes = allocator.prefixes
        # a batch that is not over asks for no room
        asks = self._config.batching == "iteration"
        self._head_refused = plan.head_refused and asks
        decides = (
            (len(self._waiting) and not self._queue_stands(plan))
            or self._delivering.has_forked
            or self._config.preempt_every
            or allocator.shares_tails
            or allocator.journal.has_moves
            or allocator.journal.poisons
            # transfers land some steps later
            or (prefixes is not None and prefixes.cache.host is not None)
        )
        return bool(
            not decides
            and len(plan.rows)
            and len(plan.rows) <= self._config.max_num_batched_tokens
            and plan.samples.all()
            and np.array_equal(plan.rows, running.rows)
        )

    def _queue_stands(self, plan: Plan) -> bool:
        """Nobody who waits is admitted before somebody else ends or comes."""
        if self._config.batching == "request":
            return True
        # a cached block more, and the first in the queue may need one less
        is_cached = self._allocator.prefixes is not None
        return plan.head_refused and self._policies.head_waits_for_blocks and not is_cached

    def begin(self, now_s: float) -> int:
        """Plans the first of some steps; how many. 0: none, since a sequence may end in the
        next, or there is no block for it, and nothing was taken."""
        running, allocator = self._running, self._allocator
        rows, tables = running.rows, running.tables
        size, computed = allocator.block_size, tables.num_computed[rows]
        left = self._delivering.tokens_left(rows).min() - 1
        if left <= 0:
            return 0
        num_needed = int((tables.num_blocks[0][rows] * size <= computed).sum())
        for group in range(len(tables.num_blocks)) if num_needed else ():
            usage = allocator.usage(group)
            # a region grows as a whole, and perhaps moves
            if self._has_regions or usage.num_available < num_needed:
                return 0
        journal = allocator.journal
        journal.step, journal.now_s = journal.step + 1, now_s
        allocator.set_now(now_s)
        lengths = np.zeros(tables.num_rows, np.int32)
        lengths[rows] = 1
        if num_needed:
            needy = running.extend_tables(lengths)
            assert needy is None, "there are blocks for all"
        self._partitions = running.partitions(lengths, head_refused=self._head_refused)
        groups = range(len(tables.block_tables))
        self._num_duplicates = sum(allocator.usage(g).num_duplicates for g in groups)
        return int(min(left, (size - computed % size).min()))

    def commit(
        self,
        steps: Sequence[RepeatedStep],
        token_ids: Int32[np.ndarray, "S"],
        table_bytes: int,
    ) -> list[StepMetrics]:
        """Takes in steps, as many as `begin` said at most, in each of which the running
        sequences sampled these tokens."""
        running, tables, journal = self._running, self._running.tables, self._journal
        rows, count = running.rows, len(steps)
        columns = tables.num_tokens[rows][:, None] + np.arange(count)
        tables.tokens[rows[:, None], columns] = token_ids[:, None]
        tables.num_tokens[rows] += count
        tables.num_computed[rows] += count
        metrics = []
        for index, step in enumerate(steps):
            if index:
                journal.step, journal.now_s = journal.step + 1, step.now_s
            self._policies.admission.step_planned()
            if index == count - 1:  # only the last may fill a block
                self._allocator.set_now(step.now_s)
                self._allocator.committed(rows)
            metrics.append(self._metrics(step, index * len(rows), table_bytes))
            if journal.listener is not None:
                journal.emit(
                    EventKind.STEP, num_tokens=len(rows), duration_s=step.duration_s
                )
        return metrics

    def deliver(
        self, ends_s: Sequence[float], token_ids: Int32[np.ndarray, "S"]
    ) -> list[RequestUpdate]:
        """Tells the requests of all stretches' tokens, which came at these times."""
        updates = []
        for request, token_id in zip(
            self._running.requests, token_ids.tolist(), strict=True
        ):
            new_ids = (token_id,) * len(ends_s)
            request.output_ids.extend(new_ids)
            request.token_times_s.extend(ends_s)
            updates.append(RequestUpdate(request.request_id, new_ids))
        return updates

    @property
    def _allocator(self) -> Allocator:
        return self._running.allocator

    @property
    def _journal(self) -> Journal:
        return self._allocator.journal

    def _metrics(
        self, step: RepeatedStep, num_later_tokens: int, table_bytes: int
    ) -> StepMetrics:
        num_running = len(self._running)
        return StepMetrics(
            step=self._journal.step,
            now_s=step.now_s,
            duration_s=step.duration_s,
            host_s=step.host_s,
            num_prefill_tokens=0,
            num_decode_tokens=num_running,
            num_running=num_running,
            num_waiting=len(self._waiting),
            num_preempted=0,
            partitions=tuple(
                _with_tokens(part, num_later_tokens, is_reserved=self._has_regions)
                for part in self._partitions
            ),
            table_bytes=table_bytes,
            num_duplicate_blocks=self._num_duplicates,
        )


def _with_tokens(part: PoolPartition, num_new: int, *, is_reserved: bool) -> PoolPartition:
    """With so many more tokens where they were reserved, or in the tails of blocks."""
    return PoolPartition(
        token_states=part.token_states + num_new,
        tail=part.tail - (0 if is_reserved else num_new),
        reserved=part.reserved - (num_new if is_reserved else 0),
        internal=part.internal,
        rounding=part.rounding,
        cached=part.cached,
        free=part.free,
        unusable_free=part.unusable_free,
        logical=part.logical,
    )

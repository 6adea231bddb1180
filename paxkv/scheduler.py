"""Which tokens of which sequences each step computes, and what comes of the result.

`plan` gives running requests their tokens first, oldest first, then admits waiting ones,
all within one budget of tokens: prefill chunks and decodes form one ragged plan. `commit`
takes the sampled tokens in and ends requests. Both queues are in order of age, and nothing
holds up the oldest running request, so that every request ends.
"""

import bisect
from collections import deque
from collections.abc import Collection
from itertools import compress
from operator import attrgetter

from paxkv.accounting import step_metrics
from paxkv.allocators import Allocator
from paxkv.config import SchedulerConfig
from paxkv.invariants import check_invariants as check_all_invariants
from paxkv.policies.victim import VICTIM_POLICIES, choose_victim
from paxkv.requests import (
    ended_early,
    metrics_of,
    new_logprobs,
    new_prompt_logprobs,
    rejection,
    row_start,
    stop_after,
)
from paxkv.running import RowLengths, Running
from paxkv.sequence_tables import SequenceTables
from paxkv.types import (
    Finish,
    FinishReason,
    Plan,
    Request,
    RequestMetrics,
    RequestUpdate,
    RowStart,
    StepOutcome,
    StepResult,
)


class Scheduler:
    """Owns all unfinished requests and what they hold of rows and blocks."""

    def __init__(
        self,
        config: SchedulerConfig,
        allocator: Allocator,
        tables: SequenceTables,
        *,
        max_context: int,
        vocab_size: int,
        eos_token_ids: Collection[int] = (),
        check_invariants: bool = False,
    ):
        self.config = config
        self.allocator = allocator
        self.tables = tables
        self.running = Running(allocator, tables)
        self.waiting: deque[Request] = deque()
        self.ended: set[int] = set()  # request ids
        self.num_added = 0
        self.num_ended = 0
        self.num_preemptions = 0
        self._unfinished: dict[int, Request] = {}
        self._step = 0
        self._max_context = max_context
        self._vocab_size = vocab_size
        self._eos_token_ids = frozenset(eos_token_ids)
        self._watermark_blocks = int(config.watermark * allocator.num_blocks)
        self._check_invariants = check_invariants

    @property
    def has_unfinished(self) -> bool:
        return bool(self._unfinished)

    def add(self, request: Request) -> RequestUpdate | None:
        """Queues a request, or says why it can never be served.

        Raises:
          ValueError: an unfinished request has the same id.
        """
        request_id = request.request_id
        if request_id in self._unfinished:
            raise ValueError(f"{request_id=} is in use; let it end, or take another.")
        finish = rejection(
            request,
            self.allocator,
            max_context=self._max_context,
            vocab_size=self._vocab_size,
        )
        # only now: a request that cannot even be judged must leave no trace
        request.order = self.num_added
        self.num_added += 1
        self.ended.discard(request_id)
        self._unfinished[request_id] = request
        self.waiting.append(request)
        if finish is None:
            return None
        return self._end_without_token(request, finish, request.arrival_s)

    def abort(
        self, request_id: int, reason: FinishReason, now_s: float
    ) -> RequestUpdate | None:
        """Ends a request between two steps; None if it had ended before.

        Raises:
          KeyError: no request ever had this id.
        """
        if request_id in self.ended:
            return None
        if request_id not in self._unfinished:
            raise KeyError(f"no request has {request_id=}; use the id that add returned.")
        request = self._unfinished[request_id]
        return self._end_without_token(request, ended_early(request, reason), now_s)

    def plan(self, now_s: float) -> Plan:
        """Decides the next step and gives its sequences their blocks."""
        self._step += 1
        num_preemptions = self.num_preemptions
        self._preempt_by_force()
        lengths = self._continue_running()
        started, head_refused = [], False
        if self.num_preemptions == num_preemptions:
            started, head_refused = self._admit_waiting(lengths, now_s)

        tables, running = self.tables, self.running
        is_scheduled = lengths[running.rows] > 0
        rows = running.rows[is_scheduled]
        starts, slice_lengths = tables.num_computed[rows], lengths[rows]
        samples = starts + slice_lengths == tables.num_tokens[rows]
        follows_prompt = starts >= tables.num_prompt_tokens[rows]
        num_decode_tokens = int((samples & follows_prompt & (slice_lengths == 1)).sum())
        return Plan(
            step=self._step,
            now_s=now_s,
            rows=rows,
            starts=starts,
            lengths=slice_lengths,
            samples=samples,
            requests=tuple(compress(running.requests, is_scheduled.tolist())),
            started=tuple(started),
            tables=tables,
            num_prefill_tokens=int(slice_lengths.sum()) - num_decode_tokens,
            num_decode_tokens=num_decode_tokens,
            num_running=len(running),
            num_waiting=len(self.waiting),
            num_preempted=self.num_preemptions - num_preemptions,
            partitions=running.partitions(lengths, head_refused=head_refused),
        )

    def commit(self, plan: Plan, result: StepResult, now_s: float) -> StepOutcome:
        """Takes in what `plan` computed; the engine fills in `host_s` of the metrics."""
        tables = self.tables
        tables.num_computed[plan.rows] += plan.lengths
        rows, tokens = plan.rows[plan.samples], result.tokens[plan.samples]
        assert ((tokens >= 0) & (tokens < self._vocab_size)).all(), (
            f"sampled ids {tokens} outside of [0, {self._vocab_size})"
        )
        tables.tokens[rows, tables.num_tokens[rows]] = tokens
        tables.num_tokens[rows] += 1
        updates = self._deliver(plan, result, now_s)
        if self._check_invariants:
            check_all_invariants(self)
        metrics = step_metrics(plan, result.duration_s, tables.table_bytes)
        return StepOutcome(updates=tuple(updates), metrics=metrics)

    def _continue_running(self) -> RowLengths:
        """The slices of the running requests, with blocks for them.

        For a request that gets no block a victim gives way; where there is none it makes
        do with what its table has room for. Then all slices are cut anew, so that the
        victim's tokens return to the budget. The others can only grow by that: no table
        ends up longer than its slice needs.
        """
        wanted = self.tables.num_tokens - self.tables.num_computed
        while True:
            lengths = self.running.slices_within(self.config.max_num_batched_tokens, wanted)
            needy = self.running.extend_tables(lengths)
            if needy is None:
                return lengths
            victim = choose_victim(
                VICTIM_POLICIES[self.config.victim],
                self.running.requests,
                needy,
                self.config.max_preemptions,
            )
            if victim is not None:
                self._preempt(victim)
            else:
                row = self.running.rows[needy]
                wanted[row] = self.running.tokens_without_new_block(needy)

    def _preempt_by_force(self) -> None:
        """Fault injection: each k-th step the newest request loses its place."""
        every, requests = self.config.preempt_every, self.running.requests
        is_due = every > 0 and self._step % every == 0 and bool(requests)
        if is_due and requests[-1].num_preemptions < self.config.max_preemptions:
            self._preempt(requests[-1])

    def _preempt(self, request: Request) -> None:
        """Frees what a request holds; its K/V will be computed again from its tokens."""
        request.num_recomputed_tokens += self.running.vacate(request)
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.insert(self._place_in_queue(request), request)

    def _admit_waiting(
        self, lengths: RowLengths, now_s: float
    ) -> tuple[list[RowStart], bool]:
        """First come, first served, until the head of the queue must wait.

        Writes the slices of the admitted into `lengths`. The flag says that the
        allocator had no room for the head.
        """
        started: list[RowStart] = []
        budget = self.config.max_num_batched_tokens - int(lengths.sum())
        while self.waiting and budget > 0 and self.tables.num_free_rows > 0:
            request = self.waiting[0]
            length = min(request.num_tokens, budget)
            keep_free = self._watermark_blocks if self.running.requests else 0
            row = self.running.start(request, length, keep_free)
            if row is None:
                return started, True
            self.waiting.popleft()
            lengths[row] = length
            budget -= length
            if request.first_scheduled_s is None:
                request.first_scheduled_s = now_s
            started.append(row_start(request, row))
        return started, False

    def _place_in_queue(self, request: Request) -> int:
        """Where in `waiting`, by age, a request is or belongs."""
        return bisect.bisect_left(self.waiting, request.order, key=attrgetter("order"))

    def _deliver(self, plan: Plan, result: StepResult, now_s: float) -> list[RequestUpdate]:
        """Appends the sampled tokens, ends requests, and says what is new of each."""
        updates = []
        slices = zip(
            plan.requests,
            plan.samples.tolist(),
            result.tokens.tolist(),
            new_logprobs(plan, result),
            new_prompt_logprobs(plan, result),
            strict=True,
        )
        for request, is_sampled, token_id, logprobs, prompt_logprobs in slices:
            finish = None
            if is_sampled:
                request.output_ids.append(token_id)
                request.token_times_s.append(now_s)
                finish = stop_after(
                    request, token_id, self._eos_token_ids, self._max_context
                )
            elif not prompt_logprobs:
                continue
            updates.append(
                RequestUpdate(
                    request_id=request.request_id,
                    new_token_ids=(token_id,) if is_sampled else (),
                    logprobs=logprobs,
                    prompt_logprobs=prompt_logprobs,
                    finish=finish,
                    metrics=None if finish is None else self._end(request, finish, now_s),
                )
            )
        return updates

    def _end_without_token(
        self, request: Request, finish: Finish, now_s: float
    ) -> RequestUpdate:
        return RequestUpdate(
            request_id=request.request_id,
            finish=finish,
            metrics=self._end(request, finish, now_s),
        )

    def _end(self, request: Request, finish: Finish, now_s: float) -> RequestMetrics:
        """Takes a request out, wherever it is, and frees what it holds."""
        if request in self.running:
            self.running.vacate(request)
        else:
            del self.waiting[self._place_in_queue(request)]
        del self._unfinished[request.request_id]
        self.ended.add(request.request_id)
        self.num_ended += 1
        return metrics_of(request, finish.reason, now_s)

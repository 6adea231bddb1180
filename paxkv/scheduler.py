"""Which tokens of which sequences each step computes, and what comes of the result.

`plan` gives running sequences their tokens first, oldest first, then admits waiting ones,
all within one budget of tokens: prefill chunks and decodes form one ragged plan. `commit`
takes the sampled tokens in, forks samples and beams, and ends requests. Both queues are in
order of rank (priority, age), and nothing holds up the first running one, so that every
request ends.
"""

from collections.abc import Collection, Sequence
from itertools import compress
from typing import Any

import numpy as np

from paxkv.accounting import step_metrics
from paxkv.admitting import Admitting
from paxkv.allocators import Allocator
from paxkv.cache_keys import token_bytes
from paxkv.config import SchedulerConfig
from paxkv.events import EventKind
from paxkv.invariants import check_invariants as check_all_invariants
from paxkv.journal import Journal
from paxkv.policies.chosen import Policies, policies_of
from paxkv.preempting import Preempting
from paxkv.request_options import Adapter
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
from paxkv.samples import (
    advance_beams,
    beam_results,
    best_samples,
    fan_out,
    make_group,
)
from paxkv.sequence_tables import SequenceTables
from paxkv.swapping import Swapper
from paxkv.types import (
    Finish,
    FinishReason,
    Group,
    Plan,
    Request,
    RequestUpdate,
    RowStart,
    StepOutcome,
    StepResult,
)
from paxkv.waiting import WaitingQueue


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
        swapper: Swapper | None = None,
        policies: Policies | None = None,
        adapters: Collection[Adapter] = (),
    ):
        self.config = config
        self.allocator = allocator
        self.tables = tables
        self.policies = policies or policies_of(config, allocator.usage(0).num_blocks)
        self.running = Running(allocator, tables, swapper)
        self.waiting = WaitingQueue()
        self.admitting = Admitting(self.running, self.waiting, self.policies, config)
        self.preempting = Preempting(
            self.running, self.waiting, self.policies, config, self.drop
        )
        self.ended: set[int] = set()  # request ids
        self.num_added = 0
        self.num_ended = 0
        self._unfinished: dict[int, Group] = {}
        self._news: list[RequestUpdate] = []  # of requests that planning ended
        self._forked: list[Request] = []  # since the last plan
        self._uncommitted: Plan | None = None  # its step has failed, if there is a next plan
        self._is_beam = np.zeros(tables.num_rows, bool)
        # of each row: the number of tokens that ends it at the latest, and whether it is
        # one sequence without stop tokens of its own
        self._most_tokens = np.zeros(tables.num_rows, np.int32)
        self._is_simple = np.zeros(tables.num_rows, bool)
        self._step = 0
        self._max_context = max_context
        self._vocab_size = vocab_size
        self._adapters = frozenset(adapters)  # that the executor has
        self._eos_token_ids = frozenset(eos_token_ids)
        self._check_invariants = check_invariants

    @property
    def journal(self) -> Journal:
        return self.allocator.journal

    @property
    def has_unfinished(self) -> bool:
        return bool(self._unfinished)

    @property
    def unfinished(self) -> Collection[Group]:
        return self._unfinished.values()

    @property
    def num_preemptions(self) -> int:
        return self.preempting.num_preemptions

    def add(self, request: Request) -> list[RequestUpdate]:
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
            max_num_seqs=self.tables.num_rows,
            adapters=self._adapters,
        )
        # only now: a request that cannot even be judged must leave no trace
        group = make_group(request, self._stop_token_ids(request), self._max_context)
        if finish is None:
            request.prompt_bytes = token_bytes(request.prompt_ids)
        self._enter(request, group)
        self.waiting.add(request)
        return [] if finish is None else self._end_group(group, finish, request.arrival_s)

    def sequence(self, request_id: int) -> Request:
        """The first sequence of an unfinished request.

        Raises:
          KeyError: there is no such request.
        """
        if request_id not in self._unfinished:
            state = "has ended" if request_id in self.ended else "was never added"
            raise KeyError(f"request {request_id} {state}; only unfinished ones can fork.")
        return self._unfinished[request_id].sequences[0]

    def fork(self, request_id: int, child: Request) -> list[RequestUpdate]:
        """`child` goes on from where a request is, sharing its K/V.

        It gets the parent's outputs as its own first news. Where it finds no row it waits,
        and computes again what the cache does not have.

        Raises:
          KeyError: no such request is unfinished.
          ValueError: the parent has several sequences, or the child's id is in use.
        """
        parent = self._forkable(request_id, child)
        child.output_ids = list(parent.output_ids)
        child.prompt_bytes = parent.prompt_bytes
        child.num_prompt_logprobs = parent.num_prompt_logprobs
        child.first_scheduled_s = parent.first_scheduled_s
        child.token_times_s = list(parent.token_times_s)
        child.num_cached_tokens = parent.num_cached_tokens
        stops = self._stop_token_ids(child)
        self._enter(child, make_group(child, stops, self._max_context))
        if parent in self.running and self.running.fork(parent, child) is not None:
            self._tell_fork(child)
        else:
            self.waiting.add(child)
        news = tuple(parent.output_ids)
        return [RequestUpdate(child.request_id, new_token_ids=news)] if news else []

    def abort(
        self,
        request_id: int,
        reason: FinishReason,
        now_s: float,
        sample_index: int | None = None,
    ) -> list[RequestUpdate]:
        """Ends a request between two steps, with all its samples or one; [] if it had
        ended.

        Raises:
          KeyError: no request ever had this id.
        """
        if request_id in self.ended:
            return []
        if request_id not in self._unfinished:
            raise KeyError(f"no request has {request_id=}; use the id that add returned.")
        group = self._unfinished[request_id]
        if sample_index is not None and group.num_sequences > 1:
            return self._abort_sample(group, sample_index, reason, now_s)
        finish = ended_early(group.sequences[0], reason)
        return self._end_group(group, finish, now_s)

    def drop(self, group: Group, reason: FinishReason, now_s: float) -> None:
        """Ends a request while planning; the next outcome tells of it."""
        finish = ended_early(group.sequences[0], reason)
        self._news += self._end_group(group, finish, now_s)

    def take_news(self) -> tuple[RequestUpdate, ...]:
        """Of requests that ended while planning."""
        news, self._news = tuple(self._news), []
        return news

    def plan(self, now_s: float) -> Plan:
        """Decides the next step and gives its sequences their blocks."""
        self._step += 1
        journal = self.journal
        journal.step, journal.now_s = self._step, now_s
        self.allocator.set_now(now_s)
        num_preemptions, num_dropped = self.num_preemptions, len(self._news)
        self.preempting.by_force(self._step, now_s)
        lengths = self.preempting.continue_running(now_s)
        forked = [request for request in self._forked if request in self.running]
        started, refused = [self._row_start(request) for request in forked], None
        self._forked.clear()
        if self.num_preemptions == num_preemptions and len(self._news) == num_dropped:
            admitted, refused = self.admitting.admit(lengths, now_s, self.drop)
            started += [self._row_start(request) for request in admitted]
            self.policies.admission.step_planned()
        plan = self._plan_of(lengths, now_s, started, refused is not None, num_preemptions)
        self._uncommitted = None if plan.is_empty else plan
        if not (len(plan.rows) or started or self._news) and self.running.requests:
            # all stand still: the newest gives way, whatever the policy
            self.preempting.break_deadlock(now_s)
        elif refused is not None and not self.running.requests:
            self.preempting.give_up(refused, now_s)
        return plan

    def commit(self, plan: Plan, result: StepResult, now_s: float) -> StepOutcome:
        """Takes in what `plan` computed; the engine fills in `host_s` of the metrics."""
        tables, self._uncommitted = self.tables, None
        tables.num_computed[plan.rows] += plan.lengths
        is_next = plan.samples & ~self._is_beam[plan.rows]
        rows, tokens = plan.rows[is_next], result.tokens[is_next]
        assert ((tokens >= 0) & (tokens < self._vocab_size)).all(), (
            f"sampled ids {tokens} outside of [0, {self._vocab_size})"
        )
        tables.tokens[rows, tables.num_tokens[rows]] = tokens
        tables.num_tokens[rows] += 1
        self.allocator.committed(plan.rows)
        updates = self._deliver(plan, result, now_s)
        if self._check_invariants:
            check_all_invariants(self)
        metrics = step_metrics(plan, result.duration_s, tables.table_bytes)
        self.journal.emit(
            EventKind.STEP, num_tokens=int(plan.lengths.sum()), duration_s=result.duration_s
        )
        return StepOutcome(updates=(*self.take_news(), *updates), metrics=metrics)

    def _plan_of(
        self,
        lengths: RowLengths,
        now_s: float,
        started: Sequence[RowStart],
        head_refused: bool,
        num_preemptions: int,
    ) -> Plan:
        tables, running = self.tables, self.running
        slice_lengths = lengths[running.rows]
        is_scheduled = slice_lengths > 0
        rows, slice_lengths = running.rows[is_scheduled], slice_lengths[is_scheduled]
        starts = tables.num_computed[rows]
        samples = starts + slice_lengths == tables.num_tokens[rows]
        follows_prompt = starts >= tables.num_prompt_tokens[rows]
        num_decode_tokens = int((samples & follows_prompt & (slice_lengths == 1)).sum())
        groups = range(len(tables.block_tables))
        failed = self._uncommitted  # what it should have done is still to do
        moves = self.journal.take_moves()
        if failed is not None:
            started, moves = (*failed.started, *started), (*failed.moves, *moves)
        return Plan(
            step=self._step,
            now_s=now_s,
            rows=rows,
            starts=starts,
            lengths=slice_lengths,
            samples=samples,
            requests=tuple(compress(running.requests, is_scheduled.tolist())),
            started=tuple(started),
            moves=moves,
            tables=tables,
            num_prefill_tokens=int(slice_lengths.sum()) - num_decode_tokens,
            num_decode_tokens=num_decode_tokens,
            num_running=len(running),
            num_waiting=len(self.waiting),
            num_preempted=self.num_preemptions - num_preemptions,
            partitions=running.partitions(lengths, head_refused=head_refused),
            num_duplicate_blocks=sum(
                self.allocator.usage(group).num_duplicates for group in groups
            ),
        )

    def _is_routine(self, plan: Plan, result: StepResult) -> np.ndarray:
        """bool [n]: a sampled token that ends nothing is all there is to tell."""
        if result.logprobs or result.prompt_logprobs:
            return np.zeros(len(plan.rows), bool)
        rows = plan.rows
        is_routine = plan.samples & self._is_simple[rows]
        is_routine &= self.tables.num_tokens[rows] < self._most_tokens[rows]
        for token_id in self._eos_token_ids:
            is_routine &= result.tokens != token_id
        return is_routine

    def _deliver(self, plan: Plan, result: StepResult, now_s: float) -> list[RequestUpdate]:
        """Appends the sampled tokens, ends requests, and says what is new of each."""
        updates: list[RequestUpdate] = []
        searches: dict[int, Group] = {}
        slices = zip(
            plan.requests,
            self._is_routine(plan, result).tolist(),
            plan.samples.tolist(),
            result.tokens.tolist(),
            new_logprobs(plan, result),
            new_prompt_logprobs(plan, result),
            strict=True,
        )
        for request, is_routine, is_sampled, token_id, logprobs, prompt_logprobs in slices:
            if is_routine:
                request.output_ids.append(token_id)
                request.token_times_s.append(now_s)
                updates.append(RequestUpdate(request.request_id, (token_id,)))
                continue
            group = request.group
            finish = metrics = None
            if is_sampled and group.beams is not None:
                top = logprobs[0]
                request.candidates = tuple(zip(top.top_ids, top.top_logprobs, strict=True))
                searches[group.request_id] = group
                is_sampled = False
            if is_sampled:
                request.output_ids.append(token_id)
                request.token_times_s.append(now_s)
                if group.num_sequences > 1:
                    self._take_sample(request, logprobs)
                finish = stop_after(
                    request, token_id, self._eos_token_ids, self._max_context
                )
                if finish is not None:
                    metrics = self._end(request, finish, now_s)
            elif not prompt_logprobs:
                continue
            update = RequestUpdate(
                request.request_id,
                (token_id,) if is_sampled else (),
                logprobs if is_sampled else (),
                prompt_logprobs,
                finish,
                metrics,
                request.sample_index,
                request.cumulative_logprob if finish is not None else None,
                finish is not None and not group.sequences,
            )
            if group.num_sequences == 1:
                updates.append(update)
            else:
                updates += self._told(group, request, update)
        for group in searches.values():
            updates += self._advance(group, now_s)
        return updates

    def _take_sample(self, request: Request, logprobs: tuple) -> None:
        """Of a request with several samples: forks them off, and adds up likelihoods."""
        if not request.group.is_forked:
            started, waiting = fan_out(request, self.running)
            for child in waiting:
                self.waiting.add(child)
            for child in started:
                self._tell_fork(child)
        if logprobs:
            request.cumulative_logprob += logprobs[0].logprob

    def _told(
        self, group: Group, request: Request, update: RequestUpdate
    ) -> list[RequestUpdate]:
        """best_of tells nothing before all samples have ended."""
        if group.num_sequences == request.sampling.n:
            return [update]
        group.withheld.append(update)
        return best_samples(group, request.sampling.n) if update.ends_request else []

    def _advance(self, group: Group, now_s: float) -> list[RequestUpdate]:
        """The next step of a beam search, once all its live beams have candidates."""
        if any(one.candidates is None for one in group.sequences):
            return []
        first = group.sequences[0]
        for child in advance_beams(group, self.running, now_s):
            self._tell_fork(child)
        if group.sequences:
            return []
        updates = beam_results(first, None, now_s)
        self._close(group, updates[-1].finish)
        return updates

    def _row_start(self, request: Request) -> RowStart:
        start = row_start(request, self.running.row_of(request))
        group, sampling = request.group, request.sampling
        self._is_beam[start.row] = group.beams is not None
        self._most_tokens[start.row] = min(request.expected_tokens, self._max_context)
        self._is_simple[start.row] = (
            group.num_sequences == 1 and not sampling.stop_token_ids
        )
        return start

    def _tell_fork(self, child: Request) -> None:
        self._forked.append(child)
        self._is_beam[self.running.row_of(child)] = child.group.beams is not None
        self.journal.emit(
            EventKind.FORK,
            request_id=child.request_id,
            sample_index=child.sample_index,
            detail=f"{child.request_id}/{child.sample_index}",
        )

    def _stop_token_ids(self, request: Request) -> frozenset[int]:
        own = frozenset(request.sampling.stop_token_ids)
        return own if request.sampling.ignore_eos else own | self._eos_token_ids

    def _forkable(self, request_id: int, child: Request) -> Request:
        if child.request_id in self._unfinished:
            raise ValueError(f"request_id={child.request_id} is in use; take another.")
        group = self.sequence(request_id).group
        if group.num_sequences > 1 or child.sampling.num_sequences > 1:
            raise ValueError(
                f"request {request_id} of {group.num_sequences} sequences cannot fork into "
                f"one of {child.sampling.num_sequences}; both must be of one."
            )
        return group.sequences[0]

    def _enter(self, request: Request, group: Group) -> None:
        priority = request.options.priority if self.policies.by_priority else 0
        request.rank = (priority, self.num_added, 0)
        self.num_added += 1
        self.ended.discard(request.request_id)
        self._unfinished[request.request_id] = group
        self.journal.emit(EventKind.ADD, request_id=request.request_id)

    def _end_group(self, group: Group, finish: Finish, now_s: float) -> list[RequestUpdate]:
        """Ends all sequences of a request for the same reason."""
        first = group.sequences[0]
        self.preempting.forget_swapped(group)
        for request in list(group.sequences):
            self._remove(request, finish)
        if group.beams is not None:
            updates = beam_results(first, finish, now_s)
        else:
            updates = [
                RequestUpdate(
                    request.request_id,
                    finish=finish,
                    metrics=metrics_of(request, finish.reason, now_s),
                    sample_index=request.sample_index,
                    score=request.cumulative_logprob,
                )
                for request in group.sequences
            ]
            updates[-1] = updates[-1]._replace(ends_request=True)
        if group.num_sequences > first.sampling.n and group.beams is None:
            group.withheld += updates
            updates = best_samples(group, first.sampling.n)
        group.sequences = []
        self._close(group, finish)
        return updates

    def _end(self, request: Request, finish: Finish, now_s: float) -> Any:
        """Ends one sequence; its request ends with the last."""
        self._remove(request, finish)
        group = request.group
        group.sequences.remove(request)
        if not group.sequences:
            self._close(group, finish)
        return metrics_of(request, finish.reason, now_s)

    def _abort_sample(
        self, group: Group, sample_index: int, reason: FinishReason, now_s: float
    ) -> list[RequestUpdate]:
        for request in group.sequences:
            if request.sample_index == sample_index:
                if self.waiting.swapped_with(request):  # its mates wait without their K/V
                    self.preempting.return_to_queue(group)
                finish = ended_early(request, reason)
                metrics = self._end(request, finish, now_s)
                update = RequestUpdate(
                    group.request_id,
                    finish=finish,
                    metrics=metrics,
                    sample_index=sample_index,
                    score=request.cumulative_logprob,
                    ends_request=not group.sequences,
                )
                return self._told(group, request, update)
        return []

    def _remove(self, request: Request, finish: Finish) -> None:
        """Takes a sequence out, wherever it is, and frees what it holds."""
        if request in self.running:
            retain = self.policies.retains(finish.reason)
            self.running.vacate(request, retain=retain)
        elif request in self.waiting:
            self.waiting.remove(request)
        if request in self._forked:
            self._forked.remove(request)

    def _close(self, group: Group, finish: Finish | None) -> None:
        del self._unfinished[group.request_id]
        self.ended.add(group.request_id)
        self.num_ended += 1
        reason = "" if finish is None else finish.reason.name
        self.journal.emit(EventKind.FINISH, request_id=group.request_id, detail=reason)

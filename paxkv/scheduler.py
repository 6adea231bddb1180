"""Which tokens of which sequences each step computes, and what comes of the result.

`plan` gives running sequences their tokens first, oldest first, then admits waiting ones,
all within one budget of tokens: prefill chunks and decodes form one ragged plan, or,
without `mix_prefill`, decodes have the steps without a prompt to compute. `commit` takes
the sampled tokens in, forks samples and beams, and ends requests. Both queues are in order
of rank (priority, age), and nothing holds up the first running one, so that every request
ends.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import compress

from paxkv.accounting import step_metrics
from paxkv.admitting import Admitting
from paxkv.allocators import Allocator
from paxkv.cache_keys import token_bytes
from paxkv.config import SchedulerConfig
from paxkv.delivering import Delivering
from paxkv.events import EventKind
from paxkv.invariants import check_invariants as check_all_invariants
from paxkv.journal import Journal
from paxkv.policies.chosen import Policies, policies_of
from paxkv.preempting import Preempting
from paxkv.repeating import Repeating
from paxkv.request_options import Adapter
from paxkv.requests import ended_early, rejection
from paxkv.roster import Roster
from paxkv.running import RowLengths, Running
from paxkv.samples import inherit, make_group
from paxkv.sequence_tables import SequenceTables
from paxkv.swapping import Swapper
from paxkv.types import (
    Finish,
    FinishReason,
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
        self.waiting = WaitingQueue(swapper)
        self.roster = Roster(self.running, self.waiting, self.policies)
        self.admitting = Admitting(self.running, self.waiting, self.policies, config)
        self.preempting = Preempting(
            self.running, self.waiting, self.policies, config, self.roster.drop
        )
        self.delivering = Delivering(
            self.running,
            self.waiting,
            self.roster,
            eos_token_ids=eos_token_ids,
            max_context=max_context,
        )
        self.repeating = Repeating(
            self.running, self.waiting, self.delivering, self.policies, config
        )
        # its step has failed, if there is a next plan
        self._uncommitted: Plan | None = None
        self._stood_still = False
        self._num_told = 0  # preemptions that plans have told of
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
        return len(self.roster) > 0

    @property
    def ended(self) -> Collection[int]:
        """Ids of requests that have ended."""
        return self.roster.ended

    @property
    def num_preemptions(self) -> int:
        return self.preempting.num_preemptions

    def add(self, request: Request) -> list[RequestUpdate]:
        """Queues a request, or says why it can never be served.

        Raises:
          ValueError: an unfinished request has the same id.
        """
        request_id = request.request_id
        if request_id in self.roster:
            raise ValueError(f"{request_id=} is in use; let it end, or take another.")
        finish = self._rejection(request)
        # only now: a request that cannot even be judged must leave no trace
        group = make_group(request, self._stop_token_ids(request), self._max_context)
        if finish is None:
            request.prompt_bytes = token_bytes(request.prompt_ids)
        self.roster.enter(request)
        self.waiting.add(request)
        if finish is None:
            return []
        return self.roster.end_group(group, finish, request.arrival_s)

    def sequence(self, request_id: int) -> Request:
        """The first sequence of an unfinished request.

        Raises:
          KeyError: there is no such request.
        """
        return self.roster.group(request_id).sequences[0]

    def fork(self, request_id: int, child: Request) -> list[RequestUpdate]:
        """`child` goes on from where a request is, sharing its K/V.

        It gets the parent's outputs as its own first news. Where it finds no row it waits,
        and computes again what the cache does not have.

        Raises:
          KeyError: no such request is unfinished.
          ValueError: the parent has several sequences, or the child's id is in use.
        """
        parent = self._forkable(request_id, child)
        finish = self._rejection(child)
        inherit(child, parent)
        group = make_group(child, self._stop_token_ids(child), self._max_context)
        self.roster.enter(child)
        news = [RequestUpdate(child.request_id, new_token_ids=tuple(parent.output_ids))]
        if finish is None and len(child.output_ids) >= child.sampling.max_tokens:
            finish = ended_early(child, FinishReason.LENGTH)
        if finish is not None:
            self.waiting.add(child)
            return news + self.roster.end_group(group, finish, child.arrival_s)
        if parent in self.running and self.running.fork(parent, child) is not None:
            self.delivering.forked(child)
        else:
            self.waiting.add(child)
        return news if parent.output_ids else []

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
        if request_id in self.roster.ended:
            return []
        group = self.roster.group(request_id)
        if sample_index is not None and group.num_sequences > 1 and group.beams is None:
            return self.roster.abort_sample(group, sample_index, reason, now_s)
        finish = ended_early(group.sequences[0], reason)
        return self.roster.end_group(group, finish, now_s)

    def take_news(self) -> tuple[RequestUpdate, ...]:
        """Of requests that ended while planning."""
        return self.roster.take_news()

    def plan(self, now_s: float) -> Plan:
        """Decides the next step and gives its sequences their blocks.

        Raises:
          ValueError: the scheduling policy does not return each waiting request once.
        """
        journal = self.journal
        journal.step, journal.now_s = journal.step + 1, now_s
        self.allocator.set_now(now_s)
        lengths, starting, refused = self._fill(now_s)
        started = [self.delivering.start_row(request) for request in starting]
        plan = self._plan_of(lengths, now_s, started, refused is not None)
        if plan.is_empty:  # nobody sees it, and the next one tells of preemptions
            self._uncommitted, plan = None, replace(plan, num_preempted=0)
        else:
            self._uncommitted, self._num_told = plan, self.num_preemptions
        stands_still = not (len(plan.rows) or started or self.roster.num_news)
        self._stood_still = stands_still and bool(self.running.requests)
        if self._stood_still:
            # all stand still: the newest gives way, whatever the policy
            self.preempting.break_deadlock(now_s)
        elif refused is not None and not self.running.requests:
            self.preempting.give_up(refused, now_s)
        return plan

    def commit(self, plan: Plan, result: StepResult, now_s: float) -> StepOutcome:
        """Takes in what `plan` computed; the engine fills in `host_s` of the metrics."""
        tables, self._uncommitted = self.tables, None
        tables.num_computed[plan.rows] += plan.lengths
        is_next = plan.samples & ~self.delivering.is_beam[plan.rows]
        rows, tokens = plan.rows[is_next], result.tokens[is_next]
        assert ((tokens >= 0) & (tokens < self._vocab_size)).all(), (
            f"sampled ids {tokens} outside of [0, {self._vocab_size})"
        )
        tables.tokens[rows, tables.num_tokens[rows]] = tokens
        tables.num_tokens[rows] += 1
        self.allocator.committed(plan.rows)
        updates = self.delivering.deliver(plan, result, now_s)
        if self._check_invariants:
            check_all_invariants(self)
        metrics = step_metrics(plan, result.duration_s, tables.table_bytes)
        self.journal.emit(
            EventKind.STEP, num_tokens=int(plan.lengths.sum()), duration_s=result.duration_s
        )
        return StepOutcome(updates=(*self.take_news(), *updates), metrics=metrics)

    def _fill(self, now_s: float) -> tuple[RowLengths, list[Request], Request | None]:
        """The slices of a step; whose rows are new, and for whom there was no room."""
        # who has just given way to others must not take the blocks back before they do
        mixes = self.config.mix_prefill or self._stood_still
        admitted, refused = [], None
        num_preemptions, num_dropped = self.num_preemptions, self.roster.num_news
        self.preempting.by_force(self.journal.step)
        lengths = self.preempting.continue_running(now_s, prefills_only=not mixes)
        nobody_left = self.roster.num_news == num_dropped
        admits = self.num_preemptions == num_preemptions and nobody_left
        if admits:
            admitted, refused = self.admitting.admit(lengths, now_s, self.roster.drop)
        if not (mixes or admitted or lengths.any()):
            lengths = self.preempting.continue_running(now_s)
        if admits and self.num_preemptions == num_preemptions:
            self.policies.admission.step_planned()
        return lengths, [*self.delivering.take_forked(), *admitted], refused

    def _plan_of(
        self,
        lengths: RowLengths,
        now_s: float,
        started: Sequence[RowStart],
        head_refused: bool,
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
            step=self.journal.step,
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
            num_preempted=self.num_preemptions - self._num_told,
            head_refused=head_refused,
            partitions=running.partitions(lengths, head_refused=head_refused),
            num_duplicate_blocks=sum(
                self.allocator.usage(group).num_duplicates for group in groups
            ),
        )

    def _rejection(self, request: Request) -> Finish | None:
        return rejection(
            request,
            self.allocator,
            max_context=self._max_context,
            vocab_size=self._vocab_size,
            max_num_seqs=self.tables.num_rows,
            adapters=self._adapters,
        )

    def _stop_token_ids(self, request: Request) -> frozenset[int]:
        own = frozenset(request.sampling.stop_token_ids)
        return own if request.sampling.ignore_eos else own | self._eos_token_ids

    def _forkable(self, request_id: int, child: Request) -> Request:
        if child.request_id in self.roster:
            raise ValueError(f"request_id={child.request_id} is in use; take another.")
        group = self.sequence(request_id).group
        has_beams = group.beams is not None or child.sampling.use_beam_search
        if group.num_sequences > 1 or child.sampling.num_sequences > 1 or has_beams:
            raise ValueError(
                f"request {request_id} of {group.num_sequences} sequences cannot fork into "
                f"one of {child.sampling.num_sequences}; both must be of one sequence, "
                "without beam search."
            )
        return group.sequences[0]

"""What a step computed, told to its requests: tokens, forks, beams and ends."""

from collections.abc import Collection

import numpy as np

from paxkv.events import EventKind
from paxkv.requests import new_logprobs, new_prompt_logprobs, row_start, stop_after
from paxkv.roster import Roster
from paxkv.running import Running
from paxkv.samples import advance_beams, beam_results, fan_out
from paxkv.types import (
    FinishReason,
    Group,
    Plan,
    Request,
    RequestUpdate,
    RowStart,
    StepResult,
)
from paxkv.waiting import WaitingQueue


class Delivering:
    """Takes sampled tokens in, and forks sequences in the decode path."""

    def __init__(
        self,
        running: Running,
        waiting: WaitingQueue,
        roster: Roster,
        *,
        eos_token_ids: Collection[int],
        max_context: int,
    ):
        num_rows = running.tables.num_rows
        self.is_beam = np.zeros(num_rows, bool)
        # of each row: the number of tokens that ends it at the latest, and whether it is
        # one sequence, no beam, without stop tokens of its own
        self._most_tokens = np.zeros(num_rows, np.int32)
        self._is_simple = np.zeros(num_rows, bool)
        self._forked: list[Request] = []  # since the last plan
        self._running = running
        self._waiting = waiting
        self._roster = roster
        self._tables = running.tables
        self._eos_token_ids = frozenset(eos_token_ids)
        self._max_context = max_context

    def take_forked(self) -> list[Request]:
        """Those that were forked since the last plan, and still run."""
        forked = [request for request in self._forked if request in self._running]
        self._forked.clear()
        return forked

    @property
    def has_forked(self) -> bool:
        """Somebody was forked since the last plan."""
        return bool(self._forked)

    def tokens_left(self, rows: np.ndarray) -> np.ndarray:
        """Per row, how many tokens it can get of which at most the last ends something;
        0 where each may, as with stop tokens or beams."""
        left = self._most_tokens[rows] - self._tables.num_tokens[rows]
        return left * (self._is_simple[rows] & (not self._eos_token_ids))

    def _is_routine(self, plan: Plan, result: StepResult) -> np.ndarray:
        """bool [n]: a sampled token that ends nothing is all there is to tell."""
        if result.logprobs or result.prompt_logprobs:
            return np.zeros(len(plan.rows), bool)
        rows = plan.rows
        is_routine = plan.samples & self._is_simple[rows]
        is_routine &= self._tables.num_tokens[rows] < self._most_tokens[rows]
        for token_id in self._eos_token_ids:
            is_routine &= result.tokens != token_id
        return is_routine

    def deliver(self, plan: Plan, result: StepResult, now_s: float) -> list[RequestUpdate]:
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
                    metrics = self._roster.end(request, finish, now_s)
            elif not prompt_logprobs:
                continue
            ranks = group.num_sequences > request.sampling.n
            update = RequestUpdate(
                request.request_id,
                (token_id,) if is_sampled else (),
                logprobs if is_sampled else (),
                prompt_logprobs,
                finish,
                metrics,
                request.sample_index,
                request.cumulative_logprob if metrics and ranks else None,
                metrics is not None and not group.sequences,
            )
            if group.num_sequences == 1:
                updates.append(update)
            else:
                updates += self._roster.told(request, update)
        for group in searches.values():
            updates += self._advance(group, now_s)
        return updates

    def _take_sample(self, request: Request, logprobs: tuple) -> None:
        """Of a request with several samples: forks them off, and adds up likelihoods."""
        if not request.group.is_forked:
            started, waiting = fan_out(request, self._running)
            for child in waiting:
                self._waiting.add(child)
            for child in started:
                self.forked(child)
        if logprobs:
            request.cumulative_logprob += logprobs[0].logprob

    def _advance(self, group: Group, now_s: float) -> list[RequestUpdate]:
        """The next step of a beam search, once all its live beams have candidates."""
        if any(one.candidates is None for one in group.sequences):
            return []
        before, first = group.sequences, group.sequences[0]
        retain = self._roster.retains(FinishReason.LENGTH)
        for child in advance_beams(group, self._running, now_s, retain=retain):
            self.forked(child)
        self._roster.left(one for one in before if one not in group.sequences)
        if group.sequences:
            return []
        updates = beam_results(first, None, now_s)
        finish = updates[-1].finish
        assert finish is not None, "a beam's results are its end"
        self._roster.close(group, finish)
        return updates

    def start_row(self, request: Request) -> RowStart:
        start = row_start(request, self._running.row_of(request))
        group, sampling = request.group, request.sampling
        self.is_beam[start.row] = group.beams is not None
        self._most_tokens[start.row] = min(request.expected_tokens, self._max_context)
        self._is_simple[start.row] = (
            group.num_sequences == 1 and group.beams is None and not sampling.stop_token_ids
        )
        return start

    def forked(self, child: Request) -> None:
        self._forked.append(child)
        self._roster.joined(child)
        self.is_beam[self._running.row_of(child)] = child.group.beams is not None
        self._running.allocator.journal.emit(
            EventKind.FORK,
            request_id=child.request_id,
            sample_index=child.sample_index,
            detail=f"{child.request_id}/{child.sample_index}",
        )

"""Which turn of which session comes next, and when."""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from paxkv.request_options import RequestOptions
from paxkv.sampling_params import SamplingParams
from paxkv.workloads.sessions import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request that is due."""

    session: int  # number of it, in order of the workload
    turn: int
    arrival_s: float
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    options: RequestOptions
    is_last: bool  # no turn of the session follows


@dataclass(slots=True, kw_only=True)
class _Conversation:
    session: Session
    said: tuple[int, ...] = ()  # all prompts and outputs so far; () before the last turn


class SessionFeed:
    """Sessions come at their times; each turn after the first comes when the one before has
    ended and its user has thought.

    Sessions are drawn from the workload when they are due, so it may be long. Holds what
    the sessions that have begun need.
    """

    def __init__(self, sessions: Iterable[Session], concurrency: int | None = None):
        """
        Args:
          sessions: in order of arrival.
          concurrency: users of a closed loop: as many sessions at once; the next begins
            when one ends, at its own time at the earliest. None: an open loop.
        """
        if concurrency is not None and concurrency < 1:
            raise ValueError(f"{concurrency=} users serve nobody; use ≥ 1, or None.")
        self.num_begun = 0  # sessions
        self.num_skipped = 0  # turns after one that was not served
        self._num_with_turns_to_come = 0  # sessions that have begun
        self._source = iter(sessions)
        self._next = next(self._source, None)
        self._coming: list[tuple[float, int, int]] = []  # heap: time, session, turn
        self._conversations: dict[int, _Conversation] = {}
        self._users_free_s = None if concurrency is None else [0.0] * concurrency

    @property
    def follows_ends(self) -> bool:
        """The end of a request may let another come."""
        return self._users_free_s is not None or self._num_with_turns_to_come > 0

    @property
    def next_arrival_s(self) -> float | None:
        """Of the next turn; None: none is due before another ends."""
        first_s = self._next_session_s()
        if self._coming and (first_s is None or self._coming[0][0] <= first_s):
            return self._coming[0][0]
        return first_s

    def take(self) -> Arrival:
        """The next turn; there must be one."""
        first_s = self._next_session_s()
        if self._coming and (first_s is None or self._coming[0][0] <= first_s):
            arrival_s, index, turn = heapq.heappop(self._coming)
        else:
            assert first_s is not None and self._next is not None, "nothing is due"
            arrival_s, index, turn = first_s, self.num_begun, 0
            self._conversations[index] = _Conversation(session=self._next)
            self.num_begun += 1
            self._next = next(self._source, None)
            if self._users_free_s is not None:
                heapq.heappop(self._users_free_s)
        return self._arrival(index, turn, arrival_s)

    def ended(
        self, arrival: Arrival, output_ids: Iterable[int], finish_s: float, *, served: bool
    ) -> None:
        """A turn has ended; without being served it is the session's last."""
        conversation = self._conversations[arrival.session]
        turns = conversation.session.turns
        if served and not arrival.is_last:
            conversation.said += tuple(output_ids)
            next_s = finish_s + turns[arrival.turn + 1].think_s
            heapq.heappush(self._coming, (next_s, arrival.session, arrival.turn + 1))
            return
        self.num_skipped += len(turns) - arrival.turn - 1
        self._num_with_turns_to_come -= not arrival.is_last
        del self._conversations[arrival.session]
        if self._users_free_s is not None:
            heapq.heappush(self._users_free_s, finish_s)

    def _next_session_s(self) -> float | None:
        if self._next is None:
            return None
        if self._users_free_s is None:
            return self._next.arrival_s
        if not self._users_free_s:
            return None
        return max(self._next.arrival_s, self._users_free_s[0])

    def _arrival(self, index: int, turn: int, arrival_s: float) -> Arrival:
        conversation = self._conversations[index]
        session = conversation.session
        prompt_ids = conversation.said + session.turns[turn].prompt_ids
        is_last = turn == len(session.turns) - 1
        self._num_with_turns_to_come += (turn == 0) - is_last
        conversation.said = () if is_last else prompt_ids
        if session.max_prompt_tokens is not None:
            prompt_ids = prompt_ids[-session.max_prompt_tokens :]
        return Arrival(
            session=index,
            turn=turn,
            arrival_s=arrival_s,
            prompt_ids=prompt_ids,
            sampling=SamplingParams(
                max_tokens=session.turns[turn].max_tokens,
                temperature=0.0 if session.num_samples == 1 else 1.0,
                ignore_eos=True,
                n=session.num_samples,
                use_beam_search=session.use_beam_search,
            ),
            options=session.options,
            is_last=is_last,
        )

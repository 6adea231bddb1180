"""Splits the time of every request among the causes of `request_records.CAUSES`.

Each instant between a request's arrival and its end has one cause, so that a request's
causes sum to its latency. In a step that decodes and prefills at once, a request that
decodes meets the decodes' seconds as `decode` and those of the prompts as
`prefill_interference`; one that prefills meets its own share of the latter, by tokens, as
`own_prefill`. What a preempted request has computed before and computes again is
`recompute`, for itself and for those that are served beside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from paxkv.analysis.request_records import CAUSES
from paxkv.simulation.work import StepSeconds, decode_slices
from paxkv.types import Plan, RequestMetrics

_INDEX = {name: index for index, name in enumerate(CAUSES)}
_QUEUEING, _OWN = _INDEX["queueing"], _INDEX["own_prefill"]
_INTERFERENCE, _RECOMPUTE = _INDEX["prefill_interference"], _INDEX["recompute"]
_HOST = _INDEX["host"]

_Key = tuple[int, int]  # request id, sample index


class PrefillSlice(NamedTuple):
    """A slice that is no decode, at `index` of the plan's."""

    index: int
    num_tokens: int
    is_recompute: bool  # of a request that was preempted before
    is_first_token: bool  # it samples the first token of its sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """What the split needs of a step, taken before it is committed."""

    start_s: float  # planning
    end_s: float
    rows: np.ndarray
    started: tuple[tuple[int, _Key], ...]  # rows that got another owner
    prefills: tuple[PrefillSlice, ...]


def view_step(plan: Plan, end_s: float) -> StepView:
    """Of a plan that has been run and not yet been committed."""
    prefills: tuple[PrefillSlice, ...] = ()
    if plan.num_prefill_tokens:
        prefills = tuple(
            PrefillSlice(
                index=index,
                num_tokens=int(plan.lengths[index]),
                is_recompute=plan.requests[index].num_preemptions > 0,
                is_first_token=bool(plan.samples[index])
                and not plan.requests[index].output_ids,
            )
            for index in np.flatnonzero(~decode_slices(plan)).tolist()
        )
    return StepView(
        start_s=plan.now_s,
        end_s=end_s,
        rows=plan.rows,
        started=tuple(
            (start.row, (start.request_id, start.sample_index)) for start in plan.started
        ),
        prefills=prefills,
    )


@dataclass(slots=True, kw_only=True)
class _Share:
    """Of a sequence that is on no row: before it starts, and while it is preempted."""

    until_s: float
    causes: np.ndarray
    at_first_token: np.ndarray | None = None

    def copy(self) -> "_Share":
        first = self.at_first_token
        return _Share(
            until_s=self.until_s,
            causes=self.causes.copy(),
            at_first_token=None if first is None else first.copy(),
        )


class TimeSplit:
    """Of the requests of one engine. Work per step grows with its slices only."""

    def __init__(self, num_rows: int):
        self._causes = np.zeros((num_rows, len(CAUSES)))
        self._first = np.zeros((num_rows, len(CAUSES)))  # at the first token
        self._has_first = np.zeros(num_rows, bool)
        self._until_s = np.zeros(num_rows)  # accounted for so far
        self._last_step = np.full(num_rows, -1)
        self._gap_cause = np.zeros(num_rows, np.intp)  # of time since `until_s`
        self._step = 0
        self._row_of: dict[_Key, int] = {}
        self._owner: dict[int, _Key] = {}
        self._away: dict[_Key, _Share] = {}
        # of requests with several sequences: what the first had when it was forked
        self._at_fork: dict[int, _Share] = {}

    def arrived(self, request_id: int, arrival_s: float, num_sequences: int = 1) -> None:
        """A request's time begins."""
        share = _Share(until_s=arrival_s, causes=np.zeros(len(CAUSES)))
        self._away[request_id, 0] = share
        if num_sequences > 1:
            self._at_fork[request_id] = share

    def left(self, request_id: int) -> None:
        """All sequences of a request have ended."""
        self._at_fork.pop(request_id, None)

    def stepped(self, view: StepView, seconds: StepSeconds) -> None:
        """Takes in a step, whose seconds are shared out in these proportions."""
        self._step += 1
        for row, key in view.started:
            self._start(row, key)
        rows, start_s = view.rows, view.start_s
        stood_still = self._last_step[rows] != self._step - 1
        gap_cause = np.where(
            stood_still & (self._gap_cause[rows] == _HOST), _QUEUEING, self._gap_cause[rows]
        )
        self._causes[rows, gap_cause] += start_s - self._until_s[rows]
        self._share_out(view, seconds)
        self._until_s[rows] = view.end_s
        self._last_step[rows] = self._step
        self._gap_cause[rows] = _HOST

    def ended(self, metrics: RequestMetrics) -> tuple[Mapping, Mapping]:
        """Seconds by cause up to the first token, and after it. Forgets the sequence.

        Of a request that ends without tokens all is in the first.
        """
        key = metrics.request_id, metrics.sample_index
        share = self._take(key)
        if share is None:  # a beam, which is told of under another number
            share = self._at_fork[metrics.request_id].copy()
        causes, first = share.causes, share.at_first_token
        rest_s = metrics.finish_s - share.until_s
        if rest_s:
            was_served = metrics.first_scheduled_s is not None
            causes[_HOST if was_served else _QUEUEING] += rest_s
        if first is None:
            return _named(causes), {}
        return _named(first), _named(causes - first)

    def _share_out(self, view: StepView, seconds: StepSeconds) -> None:
        total = sum(one.num_tokens for one in view.prefills)
        again = sum(one.num_tokens for one in view.prefills if one.is_recompute)
        recompute_s = seconds.prefill_s * again / total if total else 0.0
        left_s = view.end_s - view.start_s - seconds.total_s
        causes = np.zeros(len(CAUSES))
        causes[_INTERFERENCE] = seconds.prefill_s - recompute_s
        causes[_INDEX["decode"]] = seconds.decode_s
        causes[_RECOMPUTE] = recompute_s
        causes[_INDEX["swap"]] = seconds.swap_s + seconds.copy_s
        causes[_INDEX["communication"]] = seconds.communication_s
        causes[_HOST] = seconds.host_s + left_s
        self._causes[view.rows] += causes
        for one in view.prefills:
            row = int(view.rows[one.index])
            if not one.is_recompute:
                own_s = seconds.prefill_s * one.num_tokens / total
                self._causes[row, _INTERFERENCE] -= own_s
                self._causes[row, _OWN] += own_s
            if one.is_first_token and not self._has_first[row]:
                self._first[row] = self._causes[row]
                self._has_first[row] = True
                request_id, _ = self._owner[row]
                if request_id in self._at_fork and self._owner[row][1] == 0:
                    share = self._share(row)
                    # its samples have no token yet: each computes one of its own
                    self._at_fork[request_id] = replace(
                        share, until_s=view.end_s, at_first_token=None
                    )

    def _start(self, row: int, key: _Key) -> None:
        """`row` belongs to this sequence from now on."""
        if (before := self._owner.get(row)) is not None:
            self._away[before] = self._lift(before)
        if key in self._row_of:  # it lost its row and got another in one plan
            self._away[key] = self._lift(key)
        share = self._away.pop(key, None)
        if share is None:  # a sample forked from the first
            share, gap_cause = self._at_fork[key[0]].copy(), _QUEUEING
        else:
            gap_cause = _RECOMPUTE if share.causes.any() else _QUEUEING
        self._causes[row], self._until_s[row] = share.causes, share.until_s
        self._has_first[row] = share.at_first_token is not None
        if share.at_first_token is not None:
            self._first[row] = share.at_first_token
        self._gap_cause[row], self._last_step[row] = gap_cause, self._step - 1
        self._row_of[key], self._owner[row] = row, key

    def _share(self, row: int) -> _Share:
        return _Share(
            until_s=float(self._until_s[row]),
            causes=self._causes[row].copy(),
            at_first_token=self._first[row].copy() if self._has_first[row] else None,
        )

    def _lift(self, key: _Key) -> _Share:
        """Takes a sequence off its row."""
        row = self._row_of.pop(key)
        del self._owner[row]
        return self._share(row)

    def _take(self, key: _Key) -> _Share | None:
        return self._lift(key) if key in self._row_of else self._away.pop(key, None)


def _named(causes: np.ndarray) -> dict[str, float]:
    """Without those that took no time."""
    return {
        name: seconds
        for name, seconds in zip(CAUSES, causes.tolist(), strict=True)
        if seconds
    }

"""The unfinished requests: how they come in, and how they end."""

from collections.abc import Callable, Collection, Iterable

from paxkv.events import EventKind
from paxkv.policies.chosen import Policies
from paxkv.requests import ended_early, metrics_of
from paxkv.running import Running
from paxkv.samples import beam_results, best_samples
from paxkv.types import Finish, FinishReason, Group, Request, RequestMetrics, RequestUpdate
from paxkv.waiting import WaitingQueue

# Ends a request while planning: `Roster.drop`.
Drop = Callable[[Group, FinishReason, float], None]


class Roster:
    """Every request that was added, until its last sequence ends."""

    def __init__(self, running: Running, waiting: WaitingQueue, policies: Policies):
        self.ended: set[int] = set()  # request ids
        self.num_added = 0
        self.num_ended = 0
        self._running = running
        self._waiting = waiting
        self._policies = policies
        self._unfinished: dict[int, Group] = {}
        self._news: list[RequestUpdate] = []  # of requests that planning ended

    def __len__(self) -> int:
        return len(self._unfinished)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._unfinished

    @property
    def groups(self) -> Collection[Group]:
        return self._unfinished.values()

    @property
    def num_news(self) -> int:
        return len(self._news)

    def take_news(self) -> tuple[RequestUpdate, ...]:
        """Of requests that ended while planning."""
        news, self._news = tuple(self._news), []
        return news

    def enter(self, request: Request) -> None:
        """A request, whose group is made, gets its rank."""
        priority = request.options.priority if self._policies.by_priority else 0
        request.rank = (priority, self.num_added, 0)
        self.num_added += 1
        self.ended.discard(request.request_id)
        self._unfinished[request.request_id] = request.group
        self._emit(EventKind.ADD, request.request_id)

    def group(self, request_id: int) -> Group:
        """
        Raises:
          KeyError: no such request is unfinished.
        """
        if request_id in self.ended:
            raise KeyError(f"{request_id=} has ended; use the id of an unfinished request.")
        if request_id not in self._unfinished:
            raise KeyError(f"no request has {request_id=}; use the id that add returned.")
        return self._unfinished[request_id]

    def retains(self, reason: FinishReason) -> bool:
        """What a request leaves after such an end may stay cached."""
        return self._policies.retains(reason)

    def joined(self, child: Request) -> None:
        """A sequence was forked: nothing was computed for it so far."""
        self._policies.served.admitted(child, child.num_tokens)

    def left(self, beams: Iterable[Request]) -> None:
        """Beams go without an end of their own."""
        for beam in beams:
            self._policies.served.ended(beam)

    def drop(self, group: Group, reason: FinishReason, now_s: float) -> None:
        """Ends a request while planning; the next outcome tells of it."""
        finish = ended_early(group.sequences[0], reason)
        self._news += self.end_group(group, finish, now_s)

    def end(self, request: Request, finish: Finish, now_s: float) -> RequestMetrics:
        """Ends one sequence; its request ends with the last."""
        self._remove(request, finish)
        group = request.group
        group.sequences.remove(request)
        if not group.sequences:
            self.close(group, finish)
        return metrics_of(request, finish.reason, now_s)

    def end_group(self, group: Group, finish: Finish, now_s: float) -> list[RequestUpdate]:
        """Ends all sequences of a request for the same reason."""
        sequences, first = group.sequences, group.sequences[0]
        self._waiting.forget_swapped(group)
        for request in sequences:
            self._remove(request, finish)
        group.sequences = []
        self.close(group, finish)
        if group.beams is not None:
            return beam_results(first, finish, now_s)
        updates = [self._ended(one, finish, now_s) for one in sequences]
        updates[-1] = updates[-1]._replace(ends_request=True)
        return [told for one in updates for told in self.told(first, one)]

    def abort_sample(
        self, group: Group, sample_index: int, reason: FinishReason, now_s: float
    ) -> list[RequestUpdate]:
        """Ends one of a request's samples; [] if it had ended, or has not begun."""
        for request in group.sequences:
            if request.sample_index != sample_index:
                continue
            if self._waiting.swapped_with(request):  # its mates wait without their K/V
                self._waiting.return_to_queue(group)
            finish = ended_early(request, reason)
            self.end(request, finish, now_s)
            update = self._ended(request, finish, now_s)
            return self.told(request, update._replace(ends_request=not group.sequences))
        return []

    def told(self, request: Request, update: RequestUpdate) -> list[RequestUpdate]:
        """What of a sample's news is told now: best_of tells all at the end."""
        group = request.group
        if group.num_sequences == request.sampling.n:
            return [update]
        group.withheld.append(update)
        return best_samples(group, request.sampling.n) if update.ends_request else []

    def close(self, group: Group, finish: Finish) -> None:
        """A request's last sequence has ended."""
        del self._unfinished[group.request_id]
        self.ended.add(group.request_id)
        self.num_ended += 1
        self._emit(EventKind.FINISH, group.request_id, detail=finish.reason.name)

    def _ended(self, request: Request, finish: Finish, now_s: float) -> RequestUpdate:
        is_ranked = request.group.num_sequences > request.sampling.n
        return RequestUpdate(
            request.request_id,
            finish=finish,
            metrics=metrics_of(request, finish.reason, now_s),
            sample_index=request.sample_index,
            score=request.cumulative_logprob if is_ranked else None,
        )

    def _remove(self, request: Request, finish: Finish) -> None:
        """Takes a sequence out, wherever it is, and frees what it holds."""
        if request in self._running:
            retain = self._policies.retains(finish.reason)
            self._running.vacate(request, retain=retain)
        elif request in self._waiting:
            self._waiting.remove(request)
        self._policies.served.ended(request)

    def _emit(self, kind: EventKind, request_id: int, detail: str = "") -> None:
        journal = self._running.allocator.journal
        journal.emit(kind, request_id=request_id, detail=detail)

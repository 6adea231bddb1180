"""Feeds a workload to engines, one or several replicas, and tells what comes back."""

import heapq
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from paxkv.analysis.latency import SERVED
from paxkv.engine import Engine
from paxkv.session_feed import Arrival, SessionFeed
from paxkv.types import Finish, RequestMetrics, RequestUpdate, StepMetrics
from paxkv.workloads.sessions import Session

MOST_EMPTY_STEPS = 16  # in a row, of an engine that still has requests


@runtime_checkable
class Clock(Protocol):
    """Tells an engine's seconds; they pass only inside `running()`, or when skipped."""

    def __call__(self) -> float: ...

    def running(self) -> AbstractContextManager[None]: ...

    def skip_to(self, time_s: float) -> None: ...


class Stopwatch:
    """A clock in seconds that stands still except inside `running()`.

    Engines that take turns on one machine have one each: an engine's clock counts its
    own work and not that of the others.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._elapsed_s = 0.0
        self._resumed_s: float | None = None

    def __call__(self) -> float:
        if self._resumed_s is None:
            return self._elapsed_s
        return self._elapsed_s + self._clock() - self._resumed_s

    @contextmanager
    def running(self) -> Generator[None, None, None]:
        """Lets the time pass inside the block."""
        self._resumed_s = self._clock()
        try:
            yield
        finally:
            self._elapsed_s, self._resumed_s = self(), None

    def skip_to(self, time_s: float) -> None:
        """Lets idle time pass at once, up to `time_s` if that is still to come."""
        self._elapsed_s += max(0.0, time_s - self())


GoOn = Callable[
    [StepMetrics, float | None], tuple[Sequence[StepMetrics], Sequence[RequestUpdate]]
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """An engine with all that belongs to it; `clock` is the engine's."""

    engine: Engine
    clock: Clock
    # takes the steps that follow one and decide nothing, up to a time; for simulations
    go_on: GoOn | None = None


@runtime_checkable
class Observer(Protocol):
    """Hears of everything in the order in which it happens to each replica."""

    def arrived(self, request_id: int, arrival: Arrival, replica: int) -> None: ...

    def stepped(self, metrics: StepMetrics, replica: int) -> None: ...

    def told(self, update: RequestUpdate, replica: int) -> None: ...


class Kept:
    """Keeps all of a run; `outputs` and `finishes` by request id."""

    def __init__(self):
        self.outputs: dict[int, list[int]] = {}
        self.finishes: dict[int, Finish | None] = {}
        self.requests: list[RequestMetrics] = []  # in the order in which they ended
        self.steps: list[StepMetrics] = []

    def arrived(self, request_id: int, arrival: Arrival, replica: int) -> None:
        self.outputs[request_id], self.finishes[request_id] = [], None

    def stepped(self, metrics: StepMetrics, replica: int) -> None:
        self.steps.append(metrics)

    def told(self, update: RequestUpdate, replica: int) -> None:
        self.outputs[update.request_id].extend(update.new_token_ids)
        if update.finish is not None:
            self.finishes[update.request_id] = update.finish
            assert update.metrics is not None, "an end comes without its metrics"
            self.requests.append(update.metrics)


# The replica that serves a request.
Route = Callable[[Arrival, Sequence[Replica]], int]


def only_replica(arrival: Arrival, replicas: Sequence[Replica]) -> int:
    """Of a run with one."""
    del arrival, replicas
    return 0


class Replay:
    """Serves one workload, to the drawn lengths. Request ids count requests as they come.

    Replicas that have work step in the order of their clocks; a request is routed when no
    working replica is behind its arrival, so that a router sees all of them at that time.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        sessions: Iterable[Session],
        observer: Observer,
        *,
        route: Route = only_replica,
        concurrency: int | None = None,
    ):
        """
        Args:
          sessions: in order of arrival.
          concurrency: users of a closed loop; None: an open loop.
        """
        self.replicas = tuple(replicas)
        self.feed = SessionFeed(sessions, concurrency)
        self.num_added = 0
        self._observer = observer
        self._route = route
        self._working: list[tuple[float, int]] = []  # heap: clock, index of a replica
        self._unfinished: dict[int, tuple[Arrival, list[int]]] = {}  # outputs, if needed
        self._num_empty = 0  # steps in a row

    @property
    def done(self) -> bool:
        """Every request has ended, and none is to come."""
        return not self._unfinished and self.feed.next_arrival_s is None

    @property
    def now_s(self) -> float:
        """Of the working replica that is furthest behind; else of the furthest ahead."""
        if self._working:
            return self._working[0][0]
        return max(replica.clock() for replica in self.replicas)

    def advance(self) -> int:
        """Hands over what has arrived, or runs one step. Returns how many requests ended.

        Where nothing is left to do before the next arrival, the clock skips to it.

        Raises:
          RuntimeError: an engine has lost a request.
        """
        due_s = self.feed.next_arrival_s
        while due_s is not None and not (self._working and self._working[0][0] < due_s):
            self._add(self.feed.take())
            due_s = self.feed.next_arrival_s
        if not self._working:
            raise RuntimeError(
                f"the engine is idle, but requests {sorted(self._unfinished)} did not end."
            )
        return self._step(self._working[0][1])

    def _add(self, arrival: Arrival) -> None:
        index = self._route(arrival, self.replicas)
        replica = self.replicas[index]
        if not replica.engine.has_unfinished:
            replica.clock.skip_to(arrival.arrival_s)
            heapq.heappush(self._working, (replica.clock(), index))
        request_id = self.num_added
        self.num_added += 1
        self._observer.arrived(request_id, arrival, index)
        self._unfinished[request_id] = (arrival, [])
        with replica.clock.running():
            replica.engine.add(
                arrival.prompt_ids,
                arrival.sampling,
                request_id=request_id,
                arrival_s=arrival.arrival_s,
                options=arrival.options,
            )

    def _step(self, index: int) -> int:
        replica = self.replicas[index]
        with replica.clock.running():
            outcome = replica.engine.step()
        if outcome.metrics is not None:
            self._observer.stepped(outcome.metrics, index)
        num_ended = sum(self._tell(update, index) for update in outcome.updates)
        is_empty = outcome.metrics is None and not outcome.updates
        self._num_empty = self._num_empty + 1 if is_empty else 0
        if self._num_empty > MOST_EMPTY_STEPS:
            raise RuntimeError(
                f"the engine does nothing for requests {sorted(self._unfinished)}."
            )
        if replica.go_on is not None and outcome.metrics is not None:
            self._go_on(replica.go_on, outcome.metrics, index)
        if replica.engine.has_unfinished:
            heapq.heapreplace(self._working, (replica.clock(), index))
        else:
            heapq.heappop(self._working)
        return num_ended

    def _go_on(self, go_on: GoOn, before: StepMetrics, index: int) -> None:
        """Until the next arrival that can be known: an end may let another come."""
        until_s = self.feed.next_arrival_s
        if self.feed.follows_ends:
            others = [now_s for now_s, other in self._working if other != index]
            known = others if until_s is None else [*others, until_s]
            until_s = min(known, default=None)
        steps, updates = go_on(before, until_s)
        for metrics in steps:
            self._observer.stepped(metrics, index)
        for update in updates:
            self._tell(update, index)

    def _tell(self, update: RequestUpdate, index: int) -> bool:
        """Whether its request has ended."""
        arrival, output_ids = self._unfinished[update.request_id]
        if not arrival.is_last and update.sample_index == 0:
            output_ids.extend(update.new_token_ids)
        self._observer.told(update, index)
        if not update.ends_request:
            return False
        assert update.finish is not None and update.metrics is not None
        del self._unfinished[update.request_id]
        served = update.finish.reason in SERVED
        self.feed.ended(arrival, output_ids, update.metrics.finish_s, served=served)
        return True


def serve_in_turns(
    replays: list[Replay], on_ended: Callable[[int], object] = lambda count: None
) -> None:
    """Serves the workloads of all replays to their ends, interleaved step by step.

    The one whose clock is furthest behind steps next, so that what disturbs the machine
    for a while disturbs all of them at the same time of their runs.
    """
    unfinished = [replay for replay in replays if not replay.done]
    while unfinished:
        behind = min(unfinished, key=lambda replay: replay.now_s)
        on_ended(behind.advance())
        if behind.done:
            unfinished.remove(behind)


def differing_requests(one: Kept, other: Kept) -> list[int]:
    """Ids of the requests that both served, with other tokens or another reason to end."""
    return [
        index
        for index, finish in one.finishes.items()
        if len(reasons := _served_reasons(finish, other.finishes[index])) == 2
        and (one.outputs[index] != other.outputs[index] or reasons[0] is not reasons[1])
    ]


def _served_reasons(*ends: Finish | None) -> list[object]:
    return [end.reason for end in ends if end is not None and end.reason in SERVED]


def rejections(kept: Kept) -> dict[int, str]:
    """What each request that was not served was told, by its id."""
    return {
        index: end.message
        for index, end in kept.finishes.items()
        if end is not None and end.reason not in SERVED
    }

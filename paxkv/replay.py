"""Feeds a workload to an engine and collects what comes back."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from paxkv.analysis.latency import SERVED
from paxkv.engine import Engine
from paxkv.sampling_params import SamplingParams
from paxkv.types import Finish, RequestMetrics, StepMetrics
from paxkv.workload import WorkItem


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


class Replay:
    """One engine serving one workload, greedily and to the drawn lengths.

    Request ids are the items' indices. `outputs`, `finishes` and `requests` are indexed
    by them; the clock is the engine's.
    """

    def __init__(self, engine: Engine, items: tuple[WorkItem, ...], clock: Stopwatch):
        self.engine = engine
        self.clock = clock
        self.outputs: list[list[int]] = [[] for _ in items]
        self.finishes: list[Finish | None] = [None for _ in items]
        self.requests: list[RequestMetrics] = []  # in the order in which they ended
        self.steps: list[StepMetrics] = []
        self._items = items
        # indices, the next to arrive last; items that arrive together keep their order
        self._coming = sorted(
            range(len(items)), key=lambda i: (items[i].arrival_s, i), reverse=True
        )
        self._num_ended = 0

    @property
    def done(self) -> bool:
        """Every request has ended."""
        return self._num_ended == len(self._items)

    def advance(self) -> int:
        """Hands over what has arrived and runs one step. Returns how many requests ended.

        Where nothing is left to do before the next arrival, the clock skips to it.

        Raises:
          RuntimeError: the engine has lost a request.
        """
        if not self.engine.has_unfinished and self._coming:
            self.clock.skip_to(self._items[self._coming[-1]].arrival_s)
        with self.clock.running():
            num_added = self._add_arrived()
            outcome = self.engine.step()
        if outcome.metrics is not None:
            self.steps.append(outcome.metrics)
        elif not (num_added or outcome.updates or self._coming):
            missing = [i for i, finish in enumerate(self.finishes) if finish is None]
            raise RuntimeError(f"the engine is idle, but requests {missing} did not end.")
        before = self._num_ended
        for update in outcome.updates:
            self.outputs[update.request_id].extend(update.new_token_ids)
            if update.finish is not None:
                self.finishes[update.request_id] = update.finish
                assert update.metrics is not None, "an end comes without its metrics"
                self.requests.append(update.metrics)
                self._num_ended += 1
        return self._num_ended - before

    def _add_arrived(self) -> int:
        num_added = 0
        now_s = self.clock()
        while self._coming and self._items[self._coming[-1]].arrival_s <= now_s:
            index = self._coming.pop()
            item = self._items[index]
            self.engine.add(
                item.prompt_ids,
                SamplingParams(
                    max_tokens=item.max_tokens, temperature=0.0, ignore_eos=True
                ),
                request_id=index,
                arrival_s=item.arrival_s,
            )
            num_added += 1
        return num_added


def serve_in_turns(
    replays: list[Replay], on_ended: Callable[[int], object] = lambda count: None
) -> None:
    """Serves the workloads of all replays to their ends, interleaved step by step.

    The one whose clock is furthest behind steps next, so that what disturbs the machine
    for a while disturbs all of them at the same time of their runs.
    """
    unfinished = [replay for replay in replays if not replay.done]
    while unfinished:
        behind = min(unfinished, key=lambda replay: replay.clock())
        on_ended(behind.advance())
        if behind.done:
            unfinished.remove(behind)


def differing_requests(one: Replay, other: Replay) -> list[int]:
    """Ids of the requests that both served, with other tokens or another reason to end."""
    return [
        index
        for index, ends in enumerate(zip(one.finishes, other.finishes, strict=True))
        if len(reasons := [end.reason for end in ends if end and end.reason in SERVED]) == 2
        and (one.outputs[index] != other.outputs[index] or reasons[0] is not reasons[1])
    ]


def rejections(replay: Replay) -> dict[int, str]:
    """What each request that was not served was told, by its id."""
    return {
        index: end.message
        for index, end in enumerate(replay.finishes)
        if end is not None and end.reason not in SERVED
    }

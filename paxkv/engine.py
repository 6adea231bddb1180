"""The loop: plan, run, commit. Knows neither devices nor models."""

import operator
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol, SupportsIndex, runtime_checkable

from paxkv.allocators.prefixes import PrefixSharing
from paxkv.checks import integer_in, named, number
from paxkv.request_options import RequestOptions, require_options
from paxkv.sampling_params import SamplingParams, require_sampling_params
from paxkv.scheduler import Scheduler
from paxkv.types import (
    FinishReason,
    Plan,
    Request,
    RequestUpdate,
    StepOutcome,
    StepResult,
)

_REQUEST_ID = integer_in(
    0, 2**63 - 1, "give a number ≥ 0, or None for the next that is free"
)


@runtime_checkable
class Executor(Protocol):
    """Computes plans: on a device, or by a cost model."""

    def run(self, plan: Plan) -> StepResult: ...


class Engine:
    """Serves requests step by step.

    ```
    engine.add([5, 6, 7], SamplingParams(max_tokens=4))
    while engine.has_unfinished:
        for update in engine.step().updates:
            print(update.request_id, update.new_token_ids, update.finish)
    ```
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        clock: Callable[[], float] = time.monotonic,
    ):
        """`clock` tells seconds; a simulated executor moves it on by itself."""
        self.scheduler = scheduler
        self.executor = executor
        self.clock = clock
        self._next_id = 0
        self._undelivered: list[RequestUpdate] = []  # of requests that ended between steps

    @property
    def has_unfinished(self) -> bool:
        """Whether there is something that `step` has yet to do or to tell."""
        return self.scheduler.has_unfinished or bool(self._undelivered)

    def add(
        self,
        prompt_ids: Iterable[SupportsIndex],
        sampling: SamplingParams,
        request_id: int | None = None,
        arrival_s: float | None = None,
        options: RequestOptions | None = None,
    ) -> int:
        """Queues a request and returns its id.

        A request that cannot be served raises nothing: the next step tells why it ended.

        Args:
          prompt_ids: token ids of the model's vocabulary.
          sampling: how its tokens are chosen, and when it ends.
          request_id: by default the next number that is not taken.
          arrival_s: of this engine's clock; by default now.
          options: priority, tenant, and what keeps its K/V apart from that of others.

        Raises:
          ValueError: an unfinished request has the same id, or the id is negative, or
            the time is not finite. As with a TypeError, nothing was queued then.
          TypeError: an argument, or one of the token ids, is of the wrong type.
        """
        sampling = require_sampling_params(sampling, "sampling")
        options = require_options(options)
        request_id = self._id(request_id)
        if arrival_s is None:
            arrival_s = self.clock()
        request = Request(
            request_id=request_id,
            prompt_ids=tuple(operator.index(token_id) for token_id in prompt_ids),
            sampling=sampling,
            arrival_s=named("arrival_s", arrival_s, number),
            options=options,
        )
        self._keep(self.scheduler.add(request))
        self._next_id = max(self._next_id, request_id + 1)
        return request_id

    def fork(
        self,
        request_id: int,
        sampling: SamplingParams | None = None,
        child_id: int | None = None,
    ) -> int:
        """A new request that goes on from where another is, sharing its K/V; its id.

        Its first news are the parent's outputs so far, which count for its `max_tokens`.

        Args:
          sampling: by default the parent's.
          child_id: by default the next number that is not taken.

        Raises:
          KeyError: no such request is unfinished.
          ValueError: the parent has several samples, or the child's id is in use.
        """
        child_id = self._id(child_id)
        parent = self.scheduler.sequence(request_id)
        child = Request(
            request_id=child_id,
            prompt_ids=parent.prompt_ids,
            sampling=(
                parent.sampling
                if sampling is None
                else require_sampling_params(sampling, "sampling")
            ),
            arrival_s=self.clock(),
            options=parent.options,
        )
        self._keep(self.scheduler.fork(request_id, child))
        self._next_id = max(self._next_id, child_id + 1)
        return child_id

    def abort(
        self,
        request_id: int,
        reason: FinishReason = FinishReason.ABORTED,
        sample_index: int | None = None,
    ) -> bool:
        """Ends a request, or one of its samples, and frees its blocks at once; the next
        step tells of it.

        False: it had ended before.

        Raises:
          KeyError: no request ever had this id.
        """
        return self._keep(
            self.scheduler.abort(request_id, reason, self.clock(), sample_index)
        )

    def pin_prefix(
        self, prompt_ids: Sequence[int], options: RequestOptions | None = None
    ) -> int:
        """Keeps what is cached of a prefix, such as a system prompt, until `unpin_prefix`;
        how many tokens these are.

        Raises:
          ValueError: the engine has no prefix cache, or a token id is no int32.
        """
        return self._prefixes().pins.pin(tuple(prompt_ids), require_options(options))

    def unpin_prefix(
        self, prompt_ids: Sequence[int], options: RequestOptions | None = None
    ) -> int:
        """Takes back one `pin_prefix`; how many tokens were pinned.

        Raises:
          ValueError: the engine has no prefix cache, or a token id is no int32.
        """
        return self._prefixes().pins.unpin(tuple(prompt_ids), require_options(options))

    def reset_prefix_cache(self) -> int:
        """Forgets all cached prefixes, the pinned ones too; how many blocks got free.

        Raises:
          ValueError: the engine has no prefix cache.
        """
        return self._prefixes().pins.reset()

    def _prefixes(self) -> PrefixSharing:
        prefixes = self.scheduler.allocator.prefixes
        if prefixes is None:
            raise ValueError("this engine has no prefix cache; set cache.prefix_caching.")
        return prefixes

    def step(self) -> StepOutcome:
        """Computes one plan; `metrics` is None if there was nothing to run."""
        started_s = self.clock()
        plan = self.scheduler.plan(started_s)
        if plan.is_empty:
            updates = self._take_undelivered() + self.scheduler.take_news()
            return StepOutcome(updates=updates, metrics=None)
        result = self.executor.run(plan)
        outcome = self.scheduler.commit(plan, result, self.clock())
        host_s = max(self.clock() - started_s - result.duration_s, 0.0)
        return StepOutcome(
            updates=self._take_undelivered() + outcome.updates,
            metrics=outcome.metrics and replace(outcome.metrics, host_s=host_s),
        )

    def _id(self, request_id: Any) -> int:
        value = self._next_id if request_id is None else request_id
        return named("request_id", value, _REQUEST_ID)

    def _keep(self, updates: Sequence[RequestUpdate]) -> bool:
        self._undelivered += updates
        return bool(updates)

    def _take_undelivered(self) -> tuple[RequestUpdate, ...]:
        updates, self._undelivered = tuple(self._undelivered), []
        return updates

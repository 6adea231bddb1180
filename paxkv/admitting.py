"""Which waiting requests get a row and blocks in a step."""

from collections.abc import Iterator, Sequence

from paxkv.config import SchedulerConfig
from paxkv.events import EventKind
from paxkv.policies.chosen import Policies
from paxkv.roster import Drop
from paxkv.running import RowLengths, Running
from paxkv.types import FinishReason, Request
from paxkv.waiting import WaitingQueue


class Admitting:
    """Takes from the queue in the scheduling policy's order, as the admission policy lets.

    The first that finds no room ends it: nobody overtakes for want of blocks.
    """

    def __init__(
        self,
        running: Running,
        waiting: WaitingQueue,
        policies: Policies,
        config: SchedulerConfig,
    ):
        self.num_looked_up_tokens = 0  # of prompts, once per request
        self.num_hit_tokens = 0
        self._running = running
        self._waiting = waiting
        self._policies = policies
        self._config = config

    def admit(
        self, lengths: RowLengths, now_s: float, drop: Drop
    ) -> tuple[list[Request], Request | None]:
        """Writes the slices of the admitted into `lengths`, and returns them, and for
        whom the allocator had no room.

        Raises:
          ValueError: the scheduling policy does not return each waiting request once.
        """
        admitted: list[Request] = []
        if self._config.batching == "request" and len(self._running):
            return admitted, None
        budget = self._config.max_num_batched_tokens - int(lengths.sum())
        if not len(self._waiting) or budget <= 0:
            return admitted, None
        for request in self._in_order():
            if budget <= 0:
                break
            if request not in self._waiting or self._should_hold(request):
                continue
            swapped = self._waiting.swapped_with(request)
            at_once = len(swapped[0]) if swapped else 1
            rows_needed = request.sampling.num_beams or at_once
            if self._running.num_spare_rows < rows_needed:
                break
            if not swapped and not self._fits_step(request, budget):
                break
            started = self._resume(request) if swapped else self._start(request, budget)
            if started is None:
                is_new = request.first_scheduled_s is None
                if not (self._policies.sheds_load and is_new):
                    return admitted, request
                drop(request.group, FinishReason.REJECTED_POOL_FULL, now_s)
                continue
            for one, row, length in started:
                length = min(length, budget)
                lengths[row] = length
                budget -= length
                if one.first_scheduled_s is None:
                    one.first_scheduled_s = now_s
                admitted.append(one)
        return admitted, None

    def _in_order(self) -> list[Request]:
        """The queue as the policy wants it."""
        waiting = list(self._waiting)
        ordered = self._policies.scheduling(waiting, self)
        if ordered is waiting:  # as it came
            return waiting
        order = list(ordered)
        if len(order) != len(waiting) or {*map(id, order)} != {*map(id, waiting)}:
            raise ValueError(
                f"the scheduling policy gave {len(order)} requests for the {len(waiting)} "
                "that wait; it must return each of them once, in its order."
            )
        return order

    def cached_blocks(self, request: Request) -> Sequence[int]:
        """See `QueueView`."""
        prefixes = self._running.allocator.prefixes
        if prefixes is None:
            return ()
        return [node.node_id for node in prefixes.find(request, on_disk=False).path]

    def served_tokens(self, tenant: str) -> int:
        """See `QueueView`."""
        return self._policies.served.of(tenant)

    def is_swapped(self, request: Request) -> bool:
        """See `QueueView`."""
        return self._waiting.swapped_with(request) is not None

    def _fits_step(self, request: Request, budget: int) -> bool:
        """Without chunks, all that the cache does not have must be computed at once."""
        if self._config.chunked_prefill or request.num_tokens <= budget:
            return True
        prefixes = self._running.allocator.prefixes
        if prefixes is None:
            return False
        hit = prefixes.find(request, on_disk=False).without_part()
        num_found = min(hit.num_tokens, request.num_tokens - 1)
        return request.num_tokens - num_found <= budget

    def _keep_free(self, request: Request) -> int:
        needed = self._running.allocator.blocks_needed(request.num_tokens)
        coming = self._running.demand(request, needed)
        return self._policies.admission.keep_free(self._running.demands(), coming)

    def _start(
        self, request: Request, budget: int
    ) -> list[tuple[Request, int, int]] | None:
        started = self._running.start(request, budget, self._keep_free(request))
        if started is None:
            return None
        row, length = started
        self._waiting.remove(request)
        num_found = int(self._running.tables.num_computed[row])
        self._policies.served.admitted(request, num_found)
        self._count(request, num_found)
        return [(request, row, length)]

    def _resume(self, request: Request) -> list[tuple[Request, int, int]] | None:
        """None: there is no room. Nobody, if the host has lost bytes: the next plan finds
        the request in its place in the queue, to be computed again."""
        entry = self._waiting.swapped_with(request)
        assert entry is not None
        requests, swapped = entry
        keep_free = self._keep_free(request) if self._running.requests else 0
        swapper = self._running.swapper
        assert swapper is not None
        if not swapper.has_room(swapped, keep_free):
            return None
        if swapper.is_damaged(swapped):
            self._waiting.return_to_queue(request.group)
            return []
        rows = self._running.resume(requests, swapped)
        self._waiting.take_swapped(request.group)
        for one, row in zip(requests, rows, strict=True):
            self._tell_admitted(one, int(self._running.tables.num_computed[row]))
        # tokens in the next step: their blocks are there, their next ones perhaps not
        return [(one, row, 0) for one, row in zip(requests, rows, strict=True)]

    def _count(self, request: Request, num_found: int) -> None:
        """A look-up counts once per request; what was computed before is no hit."""
        self._tell_admitted(request, num_found)
        if request.num_cached_tokens is not None:
            lost, request.num_lost_tokens = request.num_lost_tokens, 0
            request.num_recomputed_tokens += max(lost - num_found, 0)
            return
        request.num_cached_tokens = num_found
        self.num_looked_up_tokens += len(request.prompt_ids)
        self.num_hit_tokens += num_found
        if num_found:
            self._running.allocator.journal.emit(
                EventKind.HIT, request_id=request.request_id, num_tokens=num_found
            )

    def _tell_admitted(self, request: Request, num_found: int) -> None:
        self._running.allocator.journal.emit(
            EventKind.ADMIT,
            request_id=request.request_id,
            sample_index=request.sample_index,
            num_tokens=num_found,
        )

    def _should_hold(self, request: Request) -> bool:
        """Another is computing a prefix that this one could soon find in the cache."""
        prefixes = self._running.allocator.prefixes
        if not self._config.hold_shared_prefixes or prefixes is None:
            return False
        size = self._running.allocator.block_size
        computing = [
            other
            for other in self._prefilling()
            if prefixes.root(other.options).key == prefixes.root(request.options).key
            and other.options.media == request.options.media
        ]
        if not computing or not request.reads_cache:
            return False
        num_found = prefixes.find(request, on_disk=False).num_tokens
        return any(
            _common_blocks(other.prompt_ids, request.prompt_ids, size) * size > num_found
            for other in computing
        )

    def _prefilling(self) -> Iterator[Request]:
        tables, running = self._running.tables, self._running
        is_prefill = (
            tables.num_computed[running.rows] < tables.num_prompt_tokens[running.rows]
        )
        for index in is_prefill.nonzero()[0].tolist():
            yield running.requests[index]


def _common_blocks(one: tuple[int, ...], other: tuple[int, ...], size: int) -> int:
    """Whole blocks with which both begin, less the last token of `other`."""
    count = 0
    most = min(len(one), len(other) - 1) // size
    while (
        count < most
        and one[count * size : (count + 1) * size]
        == (other[count * size : (count + 1) * size])
    ):
        count += 1
    return count

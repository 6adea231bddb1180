"""Blocks for the running sequences, and who gives way where there are none."""

from paxkv.config import SchedulerConfig
from paxkv.events import EventKind
from paxkv.policies.chosen import Policies
from paxkv.policies.pressure import Relief
from paxkv.policies.victim import Candidate, choose_victim
from paxkv.roster import Drop
from paxkv.running import RowLengths, Running
from paxkv.samples import restart_beams
from paxkv.types import FinishReason, Request
from paxkv.waiting import WaitingQueue


class Preempting:
    """Carries out the pressure policy. Requests with all their sequences give way, the
    samples of one request also singly where no other request is left."""

    def __init__(
        self,
        running: Running,
        waiting: WaitingQueue,
        policies: Policies,
        config: SchedulerConfig,
        drop: Drop,
    ):
        self.num_preemptions = 0
        self._running = running
        self._waiting = waiting
        self._policies = policies
        self._config = config
        self._drop = drop

    def continue_running(self, now_s: float, *, prefills_only: bool = False) -> RowLengths:
        """The slices of the running sequences, with blocks for them.

        For a sequence that gets no block a victim gives way; where there is none it makes
        do with what its table has room for. Then all slices are cut anew, so that the
        victim's tokens return to the budget. The others can only grow by that: no table
        ends up longer than its slice needs. With `prefills_only`, decodes stand still.
        """
        running, tables, config = self._running, self._running.tables, self._config
        wanted = tables.num_tokens - tables.num_computed
        if prefills_only:
            wanted[~running.is_prefill()] = 0
        budget, whole = config.max_num_batched_tokens, not config.chunked_prefill
        while True:
            lengths = running.slices_within(budget, wanted, whole=whole)
            needy = running.extend_tables(lengths)
            if needy is None:
                return lengths
            request = running.requests[needy]
            victim = self._victim(request)
            if victim is None and request.rank == running.requests[0].rank:
                # alone and without room, since pinned blocks take it
                self._drop(request.group, FinishReason.DROPPED_POOL_FULL, now_s)
            elif victim is None or not self.relieve(victim, now_s):
                row = running.rows[needy]
                wanted[row] = 0 if whole else running.tokens_without_new_block(needy)

    def relieve(self, victim: Candidate, now_s: float) -> bool:
        """Lets a victim give way as the policy says; False: it says that nobody shall."""
        relief = self._relief(victim)
        if relief is Relief.WAIT:
            return False
        if relief is Relief.DROP:
            group = victim.requests[0].group
            self._drop(group, FinishReason.DROPPED_POOL_FULL, now_s)
            return True
        self._give_way(victim, swaps=relief is Relief.SWAP)
        return True

    def by_force(self, step: int) -> None:
        """Fault injection: each k-th step the newest request loses its place."""
        every = self._config.preempt_every
        if not every or step % every or not self._running.requests:
            return
        newest = self._running.candidates()[-1]
        if newest.num_preemptions < self._config.max_preemptions:
            relief = self._relief(newest)
            self._give_way(newest, swaps=relief is Relief.SWAP)

    def break_deadlock(self, now_s: float) -> None:
        """All running sequences stand still: the newest gives way, to be recomputed."""
        candidates = self._running.candidates()
        if len(candidates) > 1:
            self._give_way(candidates[-1], swaps=False)
        elif (
            len(candidates[0].requests) > 1
            and candidates[0].requests[0].group.beams is None
        ):
            self._give_way(self._running.candidate(candidates[0].requests[-1]), swaps=False)
        else:
            group = candidates[0].requests[0].group
            self._drop(group, FinishReason.DROPPED_POOL_FULL, now_s)

    def give_up(self, refused: Request, now_s: float) -> None:
        """Even with nothing running there is no room for a request: pinned blocks have
        taken it, or what is on the host does not fit and must be computed again."""
        if self._waiting.swapped_with(refused):
            self._waiting.return_to_queue(refused.group)
        else:
            self._drop(refused.group, FinishReason.DROPPED_POOL_FULL, now_s)

    def _relief(self, victim: Candidate) -> Relief:
        relief = self._policies.pressure(victim, self._policies.costs)
        if not isinstance(relief, Relief):
            raise ValueError(
                f"the pressure policy returned {relief!r}; it must return a Relief, such "
                "as Relief.RECOMPUTE."
            )
        return relief

    def _victim(self, needy: Request) -> Candidate | None:
        candidates = self._running.candidates()
        groups = [candidate.requests[0].group for candidate in candidates]
        index = groups.index(needy.group)
        victim = choose_victim(
            self._policies.victim, candidates, index, self._config.max_preemptions
        )
        if victim is not None or index > 0 or needy.group.beams is not None:
            return victim
        # only the oldest request runs: its newest samples give way to its oldest
        samples = [self._running.candidate(one) for one in candidates[0].requests]
        return choose_victim(
            self._policies.victim,
            samples,
            candidates[0].requests.index(needy),
            self._config.max_preemptions,
        )

    def _give_way(self, victim: Candidate, *, swaps: bool) -> None:
        running, requests = self._running, list(victim.requests)
        self.num_preemptions += 1
        group = requests[0].group
        for request in requests:
            request.num_preemptions += 1
        swapped = None
        if swaps and not any(one in self._waiting for one in group.sequences):
            swapped = running.swap_out(requests)
        if swapped is not None:
            for request in requests:
                request.num_swaps += 1
            self._waiting.add_swapped(requests, swapped)
        else:
            retain = self._policies.retains_preempted
            for request in requests:
                request.num_lost_tokens += running.vacate(request, retain=retain)
            if group.beams is not None:
                requests = [restart_beams(group)]
            for request in requests:
                self._waiting.add(request)
        self._tell(victim, 0 if swapped else sum(one.num_lost_tokens for one in requests))

    def _tell(self, victim: Candidate, num_lost: int) -> None:
        running = self._running
        running.allocator.journal.emit(
            EventKind.PREEMPT, request_id=victim.requests[0].request_id, num_tokens=num_lost
        )
        self._policies.admission.preempted(running.demands())

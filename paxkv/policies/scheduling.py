"""In which order waiting requests are admitted.

To add a policy, write a function of the queue and the view, and name it in a config by its
import path. The queue is given in order of rank: by age, and under `priority` by priority
before that. The rank also says who is protected from preemption.
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from paxkv.types import Request

LONGEST_SORTED_QUEUE = 128  # beyond, looking up all prefixes costs more than it gains


@runtime_checkable
class QueueView(Protocol):
    """What a policy may ask of the scheduler."""

    def cached_blocks(self, request: Request) -> Sequence[int]:
        """Ids of the cache's nodes on the path of its tokens, from the root."""

    def served_tokens(self, tenant: str) -> int:
        """Tokens of a tenant so far: prompts that had to be computed, and outputs."""

    def is_swapped(self, request: Request) -> bool:
        """Its K/V waits on the host."""


SchedulingPolicy = Callable[[Sequence[Request], QueueView], Sequence[Request]]


def fcfs(waiting: Sequence[Request], view: QueueView) -> Sequence[Request]:
    """First come, first served (the paper, vLLM)."""
    del view
    return waiting


def priority(waiting: Sequence[Request], view: QueueView) -> Sequence[Request]:
    """The most urgent first, then first come (vLLM). Also protects it from preemption."""
    del view
    return waiting


def swapped_first(waiting: Sequence[Request], view: QueueView) -> Sequence[Request]:
    """Who was swapped out comes back before anybody else is admitted, then first come,
    first served (the paper, section 4.5; vLLM V0). As the first without room ends
    admission, nobody enters while somebody is on the host."""
    swapped = [request for request in waiting if view.is_swapped(request)]
    if not swapped:
        return waiting
    return [*swapped, *(request for request in waiting if not view.is_swapped(request))]


def shortest_prefill(waiting: Sequence[Request], view: QueueView) -> Sequence[Request]:
    """Fewest known tokens first: the best mean latency; long prompts may starve."""
    del view
    return sorted(waiting, key=lambda request: request.num_tokens)


def longest_prefix(waiting: Sequence[Request], view: QueueView) -> Sequence[Request]:
    """Most cached blocks first (SGLang's lpm); long queues are served as they come."""
    if len(waiting) > LONGEST_SORTED_QUEUE:
        return waiting
    return sorted(waiting, key=lambda request: -len(view.cached_blocks(request)))


def dfs_weight(waiting: Sequence[Request], view: QueueView) -> Sequence[Request]:
    """Depth first through the tree, the branch with most waiting requests first
    (SGLang's dfs-weight): those that share a prefix follow each other."""
    if len(waiting) > LONGEST_SORTED_QUEUE:
        return waiting
    paths = {id(request): tuple(view.cached_blocks(request)) for request in waiting}
    weights = Counter(node for path in paths.values() for node in path)
    return sorted(
        waiting,
        key=lambda one: [(-weights[node], node) for node in paths[id(one)]] or [(0, 0)],
    )


def fair_share(waiting: Sequence[Request], view: QueueView) -> Sequence[Request]:
    """Of the tenant with fewest tokens served so far, the oldest; its known tokens then
    count as served (a virtual token counter, Sheng et al., OSDI 2024)."""
    queues: dict[str, deque[Request]] = {}
    for request in waiting:
        queues.setdefault(request.options.tenant, deque()).append(request)
    heap = [(view.served_tokens(tenant), tenant) for tenant in queues]
    heapq.heapify(heap)
    order = []
    while heap:
        served, tenant = heapq.heappop(heap)
        request = queues[tenant].popleft()
        order.append(request)
        if queues[tenant]:
            heapq.heappush(heap, (served + request.num_tokens, tenant))
    return order


SCHEDULING_POLICIES: Mapping[str, SchedulingPolicy] = {
    "fcfs": fcfs,
    "priority": priority,
    "swapped_first": swapped_first,
    "shortest_prefill": shortest_prefill,
    "longest_prefix": longest_prefix,
    "dfs_weight": dfs_weight,
    "fair_share": fair_share,
}

"""Which replica serves a request.

To add a policy, write a function of the arrival and what can be asked of the replicas, and
name it in `ROUTING_POLICIES`.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence

from paxkv.cache_keys import token_bytes
from paxkv.replay import Replica, Route
from paxkv.session_feed import Arrival
from paxkv.types import Request

# of prefix_aware, as sgl-router's defaults (docs.sglang.ai, router, cache-aware routing)
CACHE_THRESHOLD = 0.5  # share of a prompt that must be cached to decide
BALANCE_ABSOLUTE = 32  # requests between the busiest and the idlest, and
BALANCE_RELATIVE = 1.1  # times as many: from there on load decides


def num_unfinished(replica: Replica) -> int:
    """Sequences that run or wait."""
    scheduler = replica.engine.scheduler
    return len(scheduler.running) + len(scheduler.waiting)


def num_cached_tokens(replica: Replica, request: Request) -> int:
    """Of a prompt, what the replica's prefix cache has."""
    prefixes = replica.engine.scheduler.allocator.prefixes
    return 0 if prefixes is None else prefixes.find(request, on_disk=False).num_tokens


def round_robin() -> Route:
    """One after the other, whatever they are doing."""
    numbers = itertools.count()
    return lambda arrival, replicas: next(numbers) % len(replicas)


def least_loaded() -> Route:
    """Fewest unfinished requests; of several such, the first."""

    def route(arrival: Arrival, replicas: Sequence[Replica]) -> int:
        loads = [num_unfinished(replica) for replica in replicas]
        return loads.index(min(loads))

    return route


def prefix_aware() -> Route:
    """The replica that has most of the prompt cached, unless it is little or the load is
    uneven; then the least loaded. As sgl-router's cache-aware policy, but for asking the
    replicas' caches instead of guessing them."""
    fall_back = least_loaded()

    def route(arrival: Arrival, replicas: Sequence[Replica]) -> int:
        loads = [num_unfinished(replica) for replica in replicas]
        uneven = max(loads) - min(loads) > BALANCE_ABSOLUTE and max(
            loads
        ) > BALANCE_RELATIVE * min(loads)
        if uneven:
            return fall_back(arrival, replicas)
        request = Request(
            request_id=-1,
            prompt_ids=arrival.prompt_ids,
            sampling=arrival.sampling,
            arrival_s=arrival.arrival_s,
            options=arrival.options,
            prompt_bytes=token_bytes(arrival.prompt_ids),
        )
        found = [num_cached_tokens(replica, request) for replica in replicas]
        if max(found) < CACHE_THRESHOLD * len(arrival.prompt_ids):
            return fall_back(arrival, replicas)
        return found.index(max(found))

    return route


ROUTING_POLICIES: Mapping[str, Callable[[], Route]] = {
    "round_robin": round_robin,
    "least_loaded": least_loaded,
    "prefix_aware": prefix_aware,
}

"""Which idle block of the prefix cache to give up first.

A policy ranks nodes of the tree, and the smallest rank goes. It is asked about idle leaves
only, so heads outlive their tails under every policy; in windowed groups, where a hit needs
no head, about all idle nodes. To add one, write a class with `ages` and `rank` and name it
in `EVICTION_POLICIES`, or give its import path.
"""

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from paxkv.request_options import DEFAULT_PRIORITY

if TYPE_CHECKING:
    from paxkv.prefix_cache import CacheNode
else:
    CacheNode = Any  # the cache imports this module

Rank = tuple[int | float, ...]  # of one policy: all of one length


@runtime_checkable
class EvictionPolicy(Protocol):
    """`ages`: ranks change while nodes are idle, so all are taken anew at each eviction."""

    ages: bool

    def rank(self, node: CacheNode, now_s: float) -> Rank:
        """Of an idle node; reads nothing but the node, the time and its own state."""
        ...


@dataclass(frozen=True)
class Lru:
    """Least recently used. SGLang by default, and most others."""

    ages = False

    def rank(self, node: CacheNode, now_s: float) -> Rank:
        return (node.last_used,)


@dataclass(frozen=True)
class Released:
    """Least recently released, of one release the tail first. vLLM's queue of free blocks:
    how long a request ran, and what hit it meanwhile, does not matter."""

    ages = False

    def rank(self, node: CacheNode, now_s: float) -> Rank:
        return (node.released,)


@dataclass(frozen=True)
class Lfu:
    """Least often used since it was cached, then least recently. SGLang offers it."""

    ages = False

    def rank(self, node: CacheNode, now_s: float) -> Rank:
        return (node.num_uses, node.last_used)


@dataclass(frozen=True)
class Fifo:
    """Cached first, goes first; hits do not matter. SGLang offers it."""

    ages = False

    def rank(self, node: CacheNode, now_s: float) -> Rank:
        return (node.created,)


@dataclass(frozen=True)
class Mru:
    """Most recently used: for loops over more than the cache holds. SGLang offers it."""

    ages = False

    def rank(self, node: CacheNode, now_s: float) -> Rank:
        return (-node.last_used,)


class Priority:
    """Lowest retention priority, then least recently used. TensorRT-LLM.

    A priority that has expired counts as the default, and its node as used at that time:
    it goes to the back of that queue. What "the time" was in ticks is known from the
    nodes seen until then; of times longer past than `LOG_LENGTH` of these, the node's own
    last use stands in.
    """

    ages = True
    LOG_LENGTH = 4096

    def __init__(self):
        self._seen_s: list[float] = []  # ascending, with the newest tick seen by then
        self._ticks: list[int] = []

    def rank(self, node: CacheNode, now_s: float) -> Rank:
        if not self._ticks or node.last_used > self._ticks[-1]:
            self._seen_s.append(now_s)
            self._ticks.append(node.last_used)
            if len(self._ticks) > 2 * self.LOG_LENGTH:
                del self._seen_s[: self.LOG_LENGTH], self._ticks[: self.LOG_LENGTH]
        if node.expires_s is None or now_s < node.expires_s:
            return (node.priority, node.last_used)
        before = bisect.bisect_right(self._seen_s, node.expires_s)
        queued = self._ticks[before - 1] + 0.5 if before else node.last_used  # behind them
        return (DEFAULT_PRIORITY, max(queued, node.last_used))


@dataclass(frozen=True)
class CostAware:
    """Least recomputation saved: `last_used + ticks_per_use * num_uses * cost`.

    Greedy-Dual-Size-Frequency (Cherkasova, 1998, after Cao and Irani, 1997) with the cost
    of a prefix, as RAGCache has it (Jin et al., 2024). Their clock is the rank of what was
    evicted last; here it is the tick of the last use: both rise as the cache turns over.
    The unit of cost is a block without context. In full, with `context` the tokens before
    the block, which are `num_tokens * (depth - 1)`:

        cost = 1 + context / linear_tokens

    A token's work is that of the linear layers, and attention to all tokens before it.
    The two are equal at a context of `linear_tokens` = weights per layer / (2 * width of
    the queries).
    """

    linear_tokens: float = 26_624.0  # of Llama 3 8B: 218 M weights a layer, 4,096 wide
    ticks_per_use: float = 1_000.0  # a tick is a hit, or a block that is new

    ages = False

    def rank(self, node: CacheNode, now_s: float) -> Rank:
        cost = 1 + node.num_tokens * (node.depth - 1) / self.linear_tokens
        return (node.last_used + self.ticks_per_use * node.num_uses * cost,)


class Belady:
    """The one whose next use is furthest away: the offline optimum, for replay.

    Belady's MIN (1966). No policy has more hits, if (1) each miss costs the same; (2) a
    look-up has its whole path in the cache until it ends, missing blocks included, so
    nothing bypasses the cache; (3) look-ups come one after the other. That leaves go
    first takes nothing from it: a parent's next use is never later than its child's, so
    the furthest of all is always a leaf.
    """

    ages = False

    def __init__(self, future: Sequence[Sequence[Any]]):
        """`future`: the paths of all look-ups, as keys of blocks; of one root only."""
        self._children: dict[tuple[int, Any], int] = {}  # the tree of all paths
        self._uses: list[list[int]] = [[]]  # of each path: its look-ups, ascending
        self._path_of: dict[int, int] = {}  # by node id, as met
        self._now = -1  # index of the look-up that is under way
        for index, keys in enumerate(future):
            path = 0
            for key in keys:
                path = self._children.setdefault((path, key), len(self._uses))
                if path == len(self._uses):
                    self._uses.append([])
                self._uses[path].append(index)

    def advance(self) -> None:
        """The next look-up begins; to be called before it touches the cache."""
        self._now += 1

    def rank(self, node: CacheNode, now_s: float) -> Rank:
        path = self._find(node)
        uses = [] if path is None else self._uses[path]
        after = bisect.bisect_right(uses, self._now)
        return (-uses[after] if after < len(uses) else -math.inf,)

    def _find(self, node: CacheNode) -> int | None:
        """Of the node's path; None: no look-up has it."""
        unknown = []
        while node.parent is not None and node.node_id not in self._path_of:
            unknown.append(node)
            node = node.parent
        path = self._path_of.get(node.node_id, 0)  # a root's is 0
        for below in reversed(unknown):
            found = self._children.get((path, below.key))
            if found is None:
                return None
            path = self._path_of[below.node_id] = found
        return path


EVICTION_POLICIES: Mapping[str, Callable[[], EvictionPolicy]] = {
    "lru": Lru,
    "released": Released,
    "lfu": Lfu,
    "fifo": Fifo,
    "mru": Mru,
    "priority": Priority,
    "cost_aware": CostAware,
}

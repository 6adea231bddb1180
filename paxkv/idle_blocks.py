"""Cached blocks without an owner, and which of them goes next."""

import heapq
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paxkv.policies.eviction import EvictionPolicy
    from paxkv.prefix_cache import CacheNode


class IdleBlocks:
    """Idle blocks of one cache group, in a heap by the policy's rank, smallest first.

    With `leaves_first` a block is offered only when no idle block hangs below it: whoever
    hits a path needs all of it from the root, so a tail without its head is useless. An
    entry of the heap is valid while it is the node's last.
    """

    def __init__(
        self,
        group: int,
        policy: "EvictionPolicy",
        give_up: "Callable[[CacheNode, int], None]",
        *,
        leaves_first: bool,
    ):
        """`give_up(node, group)` takes the key from a node's block and frees it."""
        self.num_idle = 0
        self.now_s = 0.0
        self._group = group
        self._policy = policy
        self._give_up = give_up
        self._leaves_first = leaves_first
        self._heap: list[tuple] = []  # (rank, number of the push, node)
        self._pushes = count()
        self._releases = count()

    def add(self, nodes: "Sequence[CacheNode]") -> None:
        """Their blocks have just lost their last owner; of a path, the tail comes first."""
        group, leaves_first = self._group, self._leaves_first
        self.num_idle += len(nodes)
        for node in nodes:
            node.is_idle[group] = True
            node.released = next(self._releases)
            if node.duration_s is not None:
                node.expires_s = self.now_s + node.duration_s
            if node.parent is not None:
                node.parent.num_idle_children[group] += 1
            if not (leaves_first and node.num_idle_children[group]):
                self._offer(node)

    def take(self, node: "CacheNode") -> None:
        """Its block is owned again, or is no longer cached."""
        group = self._group
        assert node.is_idle[group], "taken twice"
        node.is_idle[group] = False
        self.num_idle -= 1
        parent = node.parent
        if parent is not None:
            parent.num_idle_children[group] -= 1
            if parent.is_idle[group]:
                self._offer(parent)

    def evict(self, num_blocks: int) -> None:
        """Gives up at least so many blocks; there must be as many."""
        target = self.num_idle - num_blocks
        assert target >= 0, f"{num_blocks} to evict of {self.num_idle} idle blocks"
        if self._policy.ages:
            self._rank_anew()
        while self.num_idle > target:
            _, push, node = heapq.heappop(self._heap)
            if node.last_push[self._group] == push and self._is_offered(node):
                self._give_up(node, self._group)

    def _is_offered(self, node: "CacheNode") -> bool:
        group = self._group
        return node.is_idle[group] and not (
            self._leaves_first and node.num_idle_children[group]
        )

    def _offer(self, node: "CacheNode") -> None:
        if not self._is_offered(node):
            return
        push = next(self._pushes)
        node.last_push[self._group] = push
        heapq.heappush(self._heap, (self._policy.rank(node, self.now_s), push, node))
        if len(self._heap) > 2 * self.num_idle + 64:  # mostly entries that are outdated
            self._rank_anew()

    def _rank_anew(self) -> None:
        valid = [
            (push, node)
            for _, push, node in self._heap
            if node.last_push[self._group] == push and self._is_offered(node)
        ]
        self._heap = [
            (self._policy.rank(node, self.now_s), push, node) for push, node in valid
        ]
        heapq.heapify(self._heap)

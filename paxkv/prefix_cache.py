"""Blocks that later requests may find again: a tree with exact keys (DESIGN §4).

A node stands for the K/V of one block of tokens after those of its parent; a root for
everything else that K/V depends on (`cache_keys`). Keys are compared whole, so no collision
can serve wrong K/V. A node may have its block on the device (one per cache group), on the
host, or both. Evicted nodes leave the tree before their block is used again.
"""

import bisect
from collections.abc import Iterator, Sequence
from typing import Any

from paxkv.block_pool import NULL_BLOCK, BlockPool
from paxkv.cache_keys import TOKEN_BYTES, BlockKey, Part, block_key
from paxkv.events import EventKind
from paxkv.idle_blocks import IdleBlocks
from paxkv.journal import Journal
from paxkv.policies.eviction import EvictionPolicy
from paxkv.request_options import DEFAULT_PRIORITY, Media
from paxkv.tiers.host_tier import HostTier

NO_SLOT = -1
_NO_KEYS: list[bytes] = []  # of nodes without sorted children; stays empty


class CacheNode:
    """One block of tokens in its place in the tree. Lists have an entry per cache group."""

    __slots__ = (
        "children",
        "blocks",
        "created",
        "depth",
        "digest",
        "duration_s",
        "expires_s",
        "host_slots",
        "is_idle",
        "key",
        "last_push",
        "last_used",
        "node_id",
        "num_idle_children",
        "num_tokens",
        "num_uses",
        "parent",
        "priority",
        "released",
        "sorted_keys",
    )

    def __init__(
        self,
        node_id: int,
        parent: "CacheNode | None",
        key: Any,  # BlockKey, of a root the isolation key
        num_groups: int,
        num_tokens: int,
        created: int,
    ):
        self.node_id = node_id  # never used again
        self.parent = parent  # None: a root, or a node that has left the tree
        self.key = key
        self.children: dict[BlockKey, CacheNode] = {}
        self.sorted_keys = _NO_KEYS  # of children; token granularity only
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.num_tokens = num_tokens
        self.blocks = [NULL_BLOCK] * num_groups  # null: not on the device
        self.host_slots = [NO_SLOT] * num_groups
        self.is_idle = [False] * num_groups  # the device block has no owner
        self.num_idle_children = [0] * num_groups
        self.last_push = [-1] * num_groups  # of `IdleBlocks`
        self.created = created  # ticks, which count uses of the cache
        self.last_used = created
        self.num_uses = 1
        self.released = 0  # when it last lost its last owner, counted by `IdleBlocks`
        self.priority = DEFAULT_PRIORITY
        self.duration_s: float | None = None  # of the priority, after the last release
        self.expires_s: float | None = None
        self.digest = b""  # of the path from the root; only with a disk tier

    @property
    def is_alive(self) -> bool:
        """In the tree, or a root."""
        return self.parent is not None or self.depth == 0

    def subtree(self) -> Iterator["CacheNode"]:
        """This node and all below it, parents first."""
        pending: list[CacheNode] = [self]
        while pending:
            node = pending.pop()
            yield node
            pending.extend(node.children.values())


class PrefixCache:
    """The tree over the pools of all cache groups."""

    def __init__(
        self,
        pools: Sequence[BlockPool],
        policy: EvictionPolicy,
        *,
        block_size: int,
        windowed: Sequence[bool],
        by_token: bool = False,
        host: HostTier | None = None,
        journal: Journal | None = None,
    ):
        """`by_token`: partly matching blocks are found too. `windowed`: per group, whether
        its layers need only the end of a prefix, so that a hit may have gaps there."""
        self.pools = tuple(pools)
        self.block_size = block_size
        self.windowed = tuple(windowed)
        self.by_token = by_token
        self.host = host
        self.idle = tuple(
            IdleBlocks(group, policy, self._evict, leaves_first=not is_windowed)
            for group, is_windowed in enumerate(self.windowed)
        )
        for pool, idle in zip(self.pools, self.idle, strict=True):
            pool.idle = idle
        self.num_evicted = 0
        self._journal = journal or Journal()
        self._roots: dict[tuple[Part, ...], CacheNode] = {}
        self._num_nodes = 0
        self._tick = 0
        if host is not None:
            host.forget = self._forget_host_slot

    def root(self, key: tuple[Part, ...]) -> CacheNode:
        """Of an isolation key. It is kept from its first child to its last."""
        root = self._roots.get(key)
        return self._make(None, key, 0) if root is None else root

    @property
    def roots(self) -> Sequence[CacheNode]:
        return tuple(self._roots.values())

    def nodes(self) -> Iterator[CacheNode]:
        """All but the roots."""
        for root in self._roots.values():
            for node in root.subtree():
                if node.parent is not None:
                    yield node

    def set_now(self, now_s: float) -> None:
        """The time from which retention is counted."""
        for idle in self.idle:
            idle.now_s = now_s

    def match(
        self, root: CacheNode, tokens: bytes, media: Sequence[Media] = ()
    ) -> list[CacheNode]:
        """The path of whole blocks with which `tokens` (`token_bytes`) begin."""
        step, node, path = self.block_size * TOKEN_BYTES, root, []
        for start in range(0, len(tokens) - step + 1, step):
            key = tokens[start : start + step]
            if media:
                key = block_key(key, start // TOKEN_BYTES, media)
            child = node.children.get(key)
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def match_within(self, node: CacheNode, tokens: bytes) -> tuple[CacheNode, int] | None:
        """The child that begins with most of `tokens`, and with how many (≥ 1).

        Of all keys the one with the longest common prefix is a neighbour in their order.
        """
        place = bisect.bisect_left(node.sorted_keys, tokens)
        best = None
        for key in node.sorted_keys[max(place - 1, 0) : place + 1]:
            common = _common_tokens(key, tokens)
            if common and (best is None or common > best[1]):
                best = node.children[key], common
        return best

    def use(self, path: Sequence[CacheNode]) -> None:
        """A hit refreshes the whole path."""
        self._tick += 1
        for node in path:
            node.last_used = self._tick
            node.num_uses += 1
            if self.host is not None:
                self.write_through(node)

    def insert(self, parent: CacheNode, key: BlockKey, num_tokens: int) -> CacheNode:
        """The child with this key; a new one has no block yet. `parent` is alive."""
        if parent.depth == 0:  # it may have left with its last child
            parent = self._roots.setdefault(parent.key, parent)
        child = parent.children.get(key)
        if child is None:
            child = self._make(parent, key, num_tokens)
            parent.children[key] = child
            if self.by_token and not isinstance(key, tuple):
                if parent.sorted_keys is _NO_KEYS:
                    parent.sorted_keys = []
                bisect.insort(parent.sorted_keys, key)
        return child

    def attach(self, node: CacheNode, group: int, block: int) -> None:
        """Gives a node without a block in this group an owned one."""
        assert node.blocks[group] == NULL_BLOCK, "the node has a block"
        node.blocks[group] = block
        self.pools[group].node_of[block] = node
        self.pools[group].duplicates.discard(block)  # its twin is gone
        if self._journal.listener is not None:
            self._journal.emit(EventKind.CACHE, group=group, blocks=(block,))

    def write_through(self, node: CacheNode) -> None:
        """Copies a node to the host before it leaves the device, if that is the policy."""
        if self.host is None or self.host.write_policy == "write_back":
            return
        if self.host.write_policy == "write_through_selective" and node.num_uses < 2:
            return
        for group, block in enumerate(node.blocks):
            if block != NULL_BLOCK and node.host_slots[group] == NO_SLOT:
                slot = self.host.store(group, block, node)
                node.host_slots[group] = NO_SLOT if slot is None else slot

    def is_present(self, node: CacheNode, group: int) -> bool:
        """Its K/V can be had: on the device, or completely on the host."""
        if node.blocks[group] != NULL_BLOCK:
            return True
        slot = node.host_slots[group]
        return (
            slot != NO_SLOT and self.host is not None and self.host.is_stored(group, slot)
        )

    def drop(self, node: CacheNode) -> int:
        """Takes a node and all below it out of the tree; how many idle blocks got free.

        Owned blocks stay with their owners, without a key.
        """
        num_freed = 0
        parent = node.parent
        for lost in list(node.subtree()):
            for group, pool in enumerate(self.pools):
                num_freed += self._detach(lost, group, pool)
                if lost.host_slots[group] != NO_SLOT and self.host is not None:
                    self.host.release(group, lost.host_slots[group])
                    lost.host_slots[group] = NO_SLOT
            lost.parent = None
        if parent is not None:
            self._unlink(parent, node)
        return num_freed

    def reset(self) -> int:
        """Forgets everything; how many idle blocks got free. Running requests go on."""
        num_freed = 0
        for root in list(self._roots.values()):
            for child in list(root.children.values()):
                num_freed += self.drop(child)
        return num_freed

    def _make(self, parent: CacheNode | None, key: Any, num_tokens: int) -> CacheNode:
        self._num_nodes += 1
        self._tick += 1
        num_groups = len(self.pools)
        return CacheNode(self._num_nodes, parent, key, num_groups, num_tokens, self._tick)

    def _detach(self, node: CacheNode, group: int, pool: BlockPool) -> int:
        block = node.blocks[group]
        if block == NULL_BLOCK:
            return 0
        node.blocks[group] = NULL_BLOCK
        pool.node_of[block] = None
        if self._journal.listener is not None:
            self._journal.emit(EventKind.EVICT, group=group, blocks=(block,))
        if not node.is_idle[group]:
            return 0
        self.idle[group].take(node)
        pool.put_back(block)
        return 1

    def _evict(self, node: CacheNode, group: int) -> None:
        """The node's device block gets free; it may go on living on the host."""
        self.num_evicted += 1
        if self.host is not None and node.host_slots[group] == NO_SLOT:
            slot = self.host.store(group, node.blocks[group], node)
            node.host_slots[group] = NO_SLOT if slot is None else slot
        self._detach(node, group, self.pools[group])
        self._prune(node, group)

    def _forget_host_slot(self, node: CacheNode, group: int) -> None:
        """The host tier has given the node's slot to another."""
        node.host_slots[group] = NO_SLOT
        self._prune(node, group)

    def _prune(self, node: CacheNode, group: int) -> None:
        """Takes out what no request can hit any more."""
        if node.blocks[group] != NULL_BLOCK or node.host_slots[group] != NO_SLOT:
            return
        if not self.windowed[group]:
            if node.children or len(self.pools) > 1 or node.parent is None:
                self.drop(node)  # nobody gets past it
                return
            parent, node.parent = node.parent, None
            self._unlink(parent, node)
            return
        while node.parent is not None and not node.children and not _has_place(node):
            parent, node.parent = node.parent, None
            self._unlink(parent, node)
            node = parent

    def _unlink(self, parent: CacheNode, child: CacheNode) -> None:
        del parent.children[child.key]
        if self.by_token and not isinstance(child.key, tuple):
            del parent.sorted_keys[bisect.bisect_left(parent.sorted_keys, child.key)]
        if parent.parent is None and not parent.children and parent.depth == 0:
            self._roots.pop(parent.key, None)


def _has_place(node: CacheNode) -> bool:
    return any(node.blocks) or any(slot != NO_SLOT for slot in node.host_slots)


def _common_tokens(one: bytes, other: bytes) -> int:
    """How many token ids both begin with."""
    length = 0
    most = min(len(one), len(other))
    while length < most and one[length] == other[length]:
        length += 1
    return length // TOKEN_BYTES

"""The prefix cache as a radix tree: one node for each run of blocks that go together.

SGLang's RadixAttention (Zheng et al., 2024) keeps its cache in this form. It holds the
same blocks under the same keys as a tree with a node for each block, and so has the same
hits; it only has fewer nodes. This one is a view, for comparison and for a look at a cache.
"""

import heapq
from collections.abc import Iterator, Sequence
from itertools import count

from paxkv.block_pool import NULL_BLOCK
from paxkv.cache_keys import BlockKey, token_bytes
from paxkv.prefix_cache import CacheNode


class RadixNode:
    """An edge of the tree and what hangs below it; only the root's edge has no block."""

    __slots__ = ("blocks", "children", "keys", "last_used", "lock_ref", "parent")

    def __init__(
        self,
        parent: "RadixNode | None",
        keys: list[BlockKey],
        blocks: list[int],
        *,
        last_used: int = 0,
        lock_ref: int = 0,
    ):
        self.parent = parent
        self.children: dict[BlockKey, RadixNode] = {}  # by the first key of their edge
        self.keys = keys
        self.blocks = blocks
        self.last_used = last_used  # ticks; all blocks of an edge were last used together
        self.lock_ref = lock_ref  # who needs this edge: at most as many as its parent's


class RadixTree:
    """Longest prefixes in whole blocks, with locks; least recently used leaves go first.

    Edges are split where a match or an insert leaves them, and never joined again.
    """

    def __init__(self, block_size: int):
        """Empty; `block_size` in tokens."""
        if block_size < 1:
            raise ValueError(f"{block_size=} is refused: use ≥ 1 token.")
        self.block_size = block_size
        self.root = RadixNode(None, [], [])
        self._tick = 0

    @property
    def evictable_size(self) -> int:
        """Blocks that nobody has locked."""
        return sum(len(node.blocks) for node in self.nodes() if not node.lock_ref)

    @property
    def protected_size(self) -> int:
        """Blocks that somebody has locked."""
        return sum(len(node.blocks) for node in self.nodes() if node.lock_ref)

    def nodes(self) -> Iterator[RadixNode]:
        """All but the root, parents first."""
        pending = [self.root]
        while pending:
            node = pending.pop()
            if node is not self.root:
                yield node
            pending.extend(node.children.values())

    def match(self, tokens: Sequence[int]) -> list[int]:
        """The blocks of the longest prefix that is here. A tail of tokens is ignored."""
        return self._descend(self._keys(tokens))[1]

    def insert(self, tokens: Sequence[int], blocks: Sequence[int]) -> int:
        """Adds a path; returns how many of its first blocks were here already.

        Those stay as they are: the caller's blocks for them are duplicates.

        Raises:
          ValueError: `blocks` are not those of `tokens`; nothing was added.
        """
        if len(tokens) != len(blocks) * self.block_size:
            raise ValueError(
                f"{len(tokens)} tokens are not {len(blocks)} blocks of {self.block_size}; "
                "insert whole blocks, and keep the tail."
            )
        keys = self._keys(tokens)
        node, found = self._descend(keys)
        start = len(found)
        if start < len(keys):
            node.children[keys[start]] = RadixNode(
                node, keys[start:], list(blocks[start:]), last_used=self._tick
            )
        return start

    def lock(self, tokens: Sequence[int]) -> RadixNode:
        """Protects the longest prefix that is here; the node is for `unlock`."""
        node, _ = self._descend(self._keys(tokens))
        for edge in _upwards(node):
            edge.lock_ref += 1
        return node

    def unlock(self, node: RadixNode) -> None:
        """Undoes one `lock`.

        Raises:
          ValueError: the node has no lock; nothing was changed.
        """
        if node.parent is not None and node.lock_ref == 0:
            raise ValueError(f"{len(node.blocks)} blocks are unlocked, but have no lock.")
        for edge in _upwards(node):
            edge.lock_ref -= 1

    def evict_leaves(self, num_blocks: int) -> list[int]:
        """Takes out so many unlocked blocks, or all there are; returns them as they went.

        The least recently used leaf loses blocks from its end; once all are gone, its
        parent may be a leaf.
        """
        order = count()  # nodes are not compared
        heap = [(n.last_used, next(order), n) for n in self.nodes() if _is_evictable(n)]
        heapq.heapify(heap)
        evicted: list[int] = []
        while heap and len(evicted) < num_blocks:
            _, _, node = heapq.heappop(heap)
            kept = max(0, len(node.blocks) - (num_blocks - len(evicted)))
            evicted.extend(reversed(node.blocks[kept:]))
            if kept:
                del node.blocks[kept:], node.keys[kept:]
                break
            parent = node.parent
            assert parent is not None, "the root has no block to evict"
            del parent.children[node.keys[0]]
            if _is_evictable(parent):
                heapq.heappush(heap, (parent.last_used, next(order), parent))
        return evicted

    def _keys(self, tokens: Sequence[int]) -> list[BlockKey]:
        size = self.block_size
        ends = range(size, len(tokens) + 1, size)
        return [token_bytes(tokens[end - size : end]) for end in ends]

    def _descend(self, keys: list[BlockKey]) -> tuple[RadixNode, list[int]]:
        """Where the longest match ends, and its blocks; it counts as a use of all of them.

        The match ends at the end of the node's edge, which is split if need be.
        """
        self._tick += 1
        node, blocks = self.root, []
        while (child := node.children.get(_at(keys, len(blocks)))) is not None:
            start = len(blocks)
            common = 1
            while common < len(child.keys) and child.keys[common] == _at(
                keys, start + common
            ):
                common += 1
            if common < len(child.keys):
                child = _split(child, common)
            child.last_used = self._tick
            blocks.extend(child.blocks)
            node = child
        return node, blocks


def view_of(root: CacheNode, block_size: int, group: int = 0) -> RadixTree:
    """What of one root's tree is on the device, in one cache group; a copy.

    A run of only children is one edge, up to where a later hit ended or an owner's part
    does. Blocks with an owner are locked. Partly filled blocks are left out.
    """
    tree = RadixTree(block_size)
    pending = [(root, tree.root)]
    while pending:
        source, below = pending.pop()
        for child in source.children.values():
            if child.blocks[group] == NULL_BLOCK or child.num_tokens < block_size:
                continue
            last = child
            keys, blocks = [child.key], [child.blocks[group]]
            while (after := _continuation(last, group, block_size)) is not None:
                keys.append(after.key)
                blocks.append(after.blocks[group])
                last = after
            edge = RadixNode(
                below,
                keys,
                blocks,
                last_used=last.last_used,
                lock_ref=int(not last.is_idle[group]),
            )
            below.children[child.key] = edge
            tree._tick = max(tree._tick, edge.last_used)
            pending.append((last, edge))
    return tree


def _continuation(node: CacheNode, group: int, block_size: int) -> CacheNode | None:
    """The only child, if it goes on its parent's edge."""
    if len(node.children) != 1:
        return None
    (child,) = node.children.values()
    goes_on = (
        child.blocks[group] != NULL_BLOCK
        and child.num_tokens == block_size
        and child.last_used >= node.last_used
        and child.is_idle[group] == node.is_idle[group]
    )
    return child if goes_on else None


def _split(node: RadixNode, length: int) -> RadixNode:
    """Makes the first blocks of an edge a node of their own; the rest is its child.

    The rest keeps its identity, so that who has locked it can unlock it.
    """
    parent = node.parent
    assert parent is not None, "the root has no edge to split"
    upper = RadixNode(
        parent,
        node.keys[:length],
        node.blocks[:length],
        last_used=node.last_used,
        lock_ref=node.lock_ref,
    )
    parent.children[upper.keys[0]] = upper
    del node.keys[:length], node.blocks[:length]
    upper.children[node.keys[0]] = node
    node.parent = upper
    return upper


def _is_evictable(node: RadixNode) -> bool:
    return node.parent is not None and not node.children and not node.lock_ref


def _upwards(node: RadixNode) -> Iterator[RadixNode]:
    """The node and all above it but the root."""
    while node.parent is not None:
        yield node
        node = node.parent


def _at(keys: list[BlockKey], index: int) -> BlockKey:
    """Past the end the empty key, which no block has."""
    return keys[index] if index < len(keys) else b""

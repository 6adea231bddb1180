"""Prefix sharing of a paged allocator: what a request finds, and what it leaves to find."""

from collections.abc import Sequence

import numpy as np

from paxkv.allocators.hit_taking import HitTaking
from paxkv.allocators.pins import Pins
from paxkv.allocators.prefix_hit import Hit, find_hit
from paxkv.block_pool import NULL_BLOCK
from paxkv.cache_keys import (
    TOKEN_BYTES,
    BlockKey,
    Part,
    block_key,
    isolation_key,
)
from paxkv.events import EventKind
from paxkv.journal import Journal
from paxkv.prefix_cache import NO_SLOT, CacheNode, PrefixCache
from paxkv.request_options import RequestOptions
from paxkv.sequence_tables import SequenceTables
from paxkv.tiers.disk_keys import child_digest
from paxkv.tiers.disk_store import DiskStore
from paxkv.types import Request

NEVER_FULL = np.iinfo(np.int32).max  # blocks of a row whose path has left the tree


class PrefixSharing:
    """Per table row: the request, its deepest node in the tree, and how many of its blocks
    were offered to the tree."""

    def __init__(
        self,
        cache: PrefixCache,
        tables: SequenceTables,
        journal: Journal,
        *,
        windows: Sequence[int | None] = (None,),
        model_key: tuple[Part, ...] = (),
        deduplicate: bool = True,
        force_miss: bool = False,
        disk: DiskStore | None = None,
    ):
        """
        Args:
          model_key: all of the engine that K/V depends on: revision, dtype, positions.
          deduplicate: of two equal blocks that two requests computed, keep one.
          force_miss: fault mode: requests find nothing, and still register.
          disk: holds blocks that left the host.
        """
        self.cache = cache
        self.disk = disk
        self._tables = tables
        self._journal = journal
        self._windows = tuple(windows)
        self._model_key = model_key
        self._deduplicate = deduplicate
        self._force_miss = force_miss
        self._requests: list[Request | None] = [None] * tables.num_rows
        self._tips: list[CacheNode | None] = [None] * tables.num_rows
        self._num_offered = np.zeros(tables.num_rows, np.int32)
        self.pins = Pins(cache, journal, self.root)
        self._taking = HitTaking(cache, tables, journal)

    def root(self, options: RequestOptions) -> CacheNode:
        """Where the paths of requests with these options begin."""
        root = self.cache.root(isolation_key(self._model_key, options))
        if self.disk is not None and not root.digest:
            root.digest = child_digest(b"", root.key)
        return root

    def find(self, request: Request, *, on_disk: bool = True) -> Hit:
        """What the cache has of a request's known tokens; takes and refreshes nothing."""
        root = self.root(request.options)
        if self._force_miss or not request.reads_cache:
            return Hit.nothing(root, len(self._windows))
        return find_hit(
            self.cache,
            root,
            request.known_bytes,
            self._windows,
            media=request.options.media,
            disk=self.disk if on_disk else None,
        )

    def drop_damaged(self, hit: Hit) -> bool:
        """Takes out of the tree what the host has lost of a hit, and all below it."""
        host = self.cache.host
        if host is None:
            return False
        nodes = [*hit.path, *((hit.part[0],) if hit.part else ())]
        for group, first in enumerate(hit.first):
            for node in nodes[first:]:
                slot = node.host_slots[group]
                is_read = node.blocks[group] == NULL_BLOCK and slot != NO_SLOT
                if is_read and host.is_corrupt(group, slot):
                    self.cache.drop(node)
                    return True
        return False

    def take(self, row: int, request: Request, hit: Hit) -> int:
        """The row becomes an owner of all that was found; how many tokens it has by that.

        The last known token is left to compute, for its logits. There must be room.
        """
        tip = self._taking.take(row, request, hit) if hit.num_tokens else hit.root
        self._requests[row], self._tips[row] = request, tip
        self._num_offered[row] = tip.depth
        num_computed = min(hit.num_tokens, request.num_tokens - 1)
        if num_computed < tip.depth * self.cache.block_size:
            # all found: the last token's K/V is in a shared block, and not written again
            self._tables.first_write[row] = tip.depth * self.cache.block_size
        return num_computed

    def register(self, rows: np.ndarray) -> None:
        """Offers the blocks of these rows that are full by now to the tree."""
        tables, size = self._tables, self.cache.block_size
        num_full = tables.num_computed[rows] // size
        num_offered = self._num_offered[rows]
        is_due = num_full > num_offered
        if not is_due.any():
            return
        rows, num_full, first = rows[is_due], num_full[is_due], num_offered[is_due]
        if (num_full == first + 1).all():  # as in decode steps: all tokens in one call
            columns = (first * size)[:, None] + np.arange(size)
            gathered = tables.tokens[rows[:, None], columns]
            tokens = [gathered[index].tobytes() for index in range(len(rows))]
        else:
            spans = zip(rows, first * size, num_full * size, strict=True)
            tokens = [tables.tokens[row, a:b].tobytes() for row, a, b in spans]
        due = zip(rows.tolist(), first.tolist(), num_full.tolist(), tokens, strict=True)
        for row, start, end, known in due:
            self._register_row(row, start, end, known)

    def fork(self, row: int, child: int, request: Request) -> None:
        """The child's path is that of the row."""
        self._requests[child], self._tips[child] = request, self._tips[row]
        self._num_offered[child] = self._num_offered[row]

    def restart(self, row: int, request: Request) -> None:
        """The row's blocks came back from the host: all are offered again."""
        self._requests[row], self._tips[row] = request, self.root(request.options)
        self._num_offered[row] = 0

    def leave(self, row: int) -> CacheNode | None:
        """The row is about to give up its blocks; its deepest node, if that is in the tree.

        With token granularity its last, partly filled block may be found again, too.
        """
        tip = self._tips[row]
        if tip is not None and tip.is_alive and self.cache.by_token:
            tip = self._register_part(row, tip)
        self._requests[row] = self._tips[row] = None
        self._num_offered[row] = 0
        return tip if tip is not None and tip.is_alive else None

    def forget(self, tip: CacheNode) -> None:
        """Drops the blocks from `tip` upwards that nobody owns and nobody has hit."""
        node: CacheNode | None = tip
        while node is not None and node.parent is not None:
            parent = node.parent
            if node.children or node.num_uses > 1 or not all(node.is_idle):
                return
            self.cache.drop(node)
            node = parent

    def _register_row(self, row: int, first: int, num_full: int, tokens: bytes) -> None:
        """`tokens` of the row's blocks [first, num_full)."""
        tip, request, size = self._tips[row], self._requests[row], self.cache.block_size
        self._num_offered[row] = num_full
        if tip is None or request is None or not tip.is_alive:
            self._num_offered[row] = NEVER_FULL
            return
        media = request.options.media
        for index in range(first, num_full):
            offset = (index - first) * size * TOKEN_BYTES
            known = tokens[offset : offset + size * TOKEN_BYTES]
            key = block_key(known, index * size, media)
            tip = self._offer(row, request, tip, key, size, index)
            if not tip.is_alive:  # its copy took the host slot of a block before it
                self._tips[row], self._num_offered[row] = None, NEVER_FULL
                return
        self._tips[row] = tip

    def _offer(
        self,
        row: int,
        request: Request,
        parent: CacheNode,
        key: BlockKey,
        num_tokens: int,
        index: int,
    ) -> CacheNode:
        """The row's block `index` becomes that of the node, unless the node has one."""
        node = self.cache.insert(parent, key, num_tokens)
        if self.disk is not None and not node.digest:
            node.digest = child_digest(node.parent.digest if node.parent else b"", key)
        if request.options.retention:
            self._retain(node, request, index)
        for group, pool in enumerate(self.cache.pools):
            own = self._tables.block_tables[group].item(row, index)
            known = node.blocks[group]
            if own in (NULL_BLOCK, known):
                continue
            if known == NULL_BLOCK:
                self.cache.attach(node, group, own)
            elif self._deduplicate:
                pool.share([known])
                self._journal.tell(EventKind.SHARE, group, [known], request.request_id)
                self._tables.block_tables[group][row, index] = known  # before the free
                pool.free([own])
                self._journal.gave_up(group, pool, [own], request.request_id)
            else:
                pool.duplicates.add(own)
        self.cache.write_through(node)
        return node

    def _register_part(self, row: int, tip: CacheNode) -> CacheNode:
        """A partly filled last block that the row alone owns, as a leaf."""
        tables, size = self._tables, self.cache.block_size
        request, computed = self._requests[row], int(tables.num_computed[row])
        index, num_tokens = divmod(computed, size)
        owns = all(
            index < tables.num_blocks[group][row]
            and pool.refcounts[tables.block_tables[group][row, index]] == 1
            for group, pool in enumerate(self.cache.pools)
        )
        if request is None or not num_tokens or index != tip.depth or not owns:
            return tip
        start = index * size
        tokens = tables.tokens[row, start:computed].tobytes()
        key = block_key(tokens, start, request.options.media)
        if key in tip.children or key is not tokens:
            return tip
        return self._offer(row, request, tip, key, num_tokens, index)

    def _retain(self, node: CacheNode, request: Request, index: int) -> None:
        """The newest wish for a block's tokens counts, and of one request's the last."""
        start = index * self.cache.block_size
        for wish in request.options.retention:
            end = len(request.prompt_ids) if wish.end is None else wish.end
            if wish.start < start + node.num_tokens and start < end:
                node.priority, node.duration_s = wish.priority, wish.duration_s

"""Prefix sharing of a paged allocator: what a request finds, and what it leaves to find."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from paxkv.allocators.prefix_hit import DiskBlock, Hit, find_hit
from paxkv.block_pool import NULL_BLOCK, BlockPool
from paxkv.cache_keys import (
    TOKEN_BYTES,
    BlockKey,
    Part,
    block_key,
    isolation_key,
    token_bytes,
)
from paxkv.events import EventKind
from paxkv.journal import Journal
from paxkv.moves import Load, SwapIn
from paxkv.prefix_cache import NO_SLOT, CacheNode, PrefixCache
from paxkv.request_options import RequestOptions
from paxkv.sequence_tables import SequenceTables
from paxkv.tiers.disk_keys import child_digest
from paxkv.tiers.disk_store import DiskStore
from paxkv.types import Request

PIN = -1  # what events call the owner that a pin is
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
        self.pins: list[Counter[int]] = [Counter() for _ in windows]  # block -> pins

    def root(self, options: RequestOptions) -> CacheNode:
        """Where the paths of requests with these options begin."""
        root = self.cache.root(isolation_key(self._model_key, options))
        if self.disk is not None and not root.digest:
            root.digest = child_digest(b"", root.key)
        return root

    def find(self, request: Request) -> Hit:
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
            disk=self.disk,
        )

    def num_pinned(self, group: int) -> int:
        """Blocks that are owned by a pin, if by nobody else."""
        return len(self.pins[group])

    def pin(self, tokens: tuple[int, ...], options: RequestOptions) -> int:
        """Makes the cache an owner of what it has of a prefix on the device, so that it
        stays; how many tokens these are. Pins add up.

        Raises:
          ValueError: a token id is no int32.
        """
        path = self._pinnable(tokens, options)
        for group, pool in enumerate(self.cache.pools):
            blocks = [node.blocks[group] for node in path if node.blocks[group]]
            pool.share(blocks)
            self.pins[group].update(blocks)
            if blocks:
                self._journal.emit(
                    EventKind.SHARE, group=group, blocks=tuple(blocks), request_id=PIN
                )
        return len(path) * self.cache.block_size

    def unpin(self, tokens: tuple[int, ...], options: RequestOptions) -> int:
        """Takes one pin from a prefix; how many tokens of it had one."""
        path = self._pinnable(tokens, options)
        num_tokens = 0
        for group, pool in enumerate(self.cache.pools):
            blocks = [b for node in path if self.pins[group][b := node.blocks[group]] > 0]
            self.pins[group].subtract(blocks)
            self.pins[group] += Counter()  # without those at 0
            self._unshare(group, pool, blocks)
            num_tokens = max(num_tokens, len(blocks) * self.cache.block_size)
        return num_tokens

    def reset(self) -> int:
        """Forgets all prefixes and pins; how many blocks got free."""
        before = sum(pool.num_free for pool in self.cache.pools)
        self.cache.reset()
        for group, (pins, pool) in enumerate(zip(self.pins, self.cache.pools, strict=True)):
            self._unshare(group, pool, list(pins.elements()))
            pins.clear()
        return sum(pool.num_free for pool in self.cache.pools) - before

    def _unshare(self, group: int, pool: BlockPool, blocks: list[int]) -> None:
        """Takes pins away, one after the other."""
        for block in reversed(blocks):
            pool.free([block])
            kind = EventKind.RELEASE
            if not pool.refcounts[block]:
                has_key = pool.node_of[block] is not None
                kind = EventKind.RETAIN if has_key else EventKind.FREE
            self._journal.emit(kind, group=group, blocks=(block,), request_id=PIN)

    def _pinnable(
        self, tokens: tuple[int, ...], options: RequestOptions
    ) -> list[CacheNode]:
        path = self.cache.match(self.root(options), token_bytes(tokens), options.media)
        for index, node in enumerate(path):
            if NULL_BLOCK in node.blocks:
                return path[:index]
        return path

    def take(self, row: int, request: Request, hit: Hit) -> int:
        """The row becomes an owner of all that was found; how many tokens it has by that.

        The last known token is left to compute, for its logits. There must be room.
        """
        if not hit.num_tokens:
            self._requests[row], self._tips[row] = request, hit.root
            return 0
        tables, size = self._tables, self.cache.block_size
        held = self._hold(hit)
        for group, pool in enumerate(self.cache.pools):
            pool.share(blocks := hit.device_blocks(group))
            self._tell(EventKind.SHARE, group, blocks, request)
        self.cache.use([*hit.path, *((hit.part[0],) if hit.part else ())])
        for group, pool in enumerate(self.cache.pools):
            self._take_path(group, pool, row, request, hit)
        tip = hit.path[-1] if hit.path else hit.root
        for block in hit.disk:
            tip = self._load(row, request, tip, block)
        if hit.part is not None:
            self._copy_part(row, request, hit.part[0])
        self._let_go(held)
        self._requests[row], self._tips[row] = request, tip
        self._num_offered[row] = tip.depth
        num_computed = min(hit.num_tokens, request.num_tokens - 1)
        if (
            num_computed < tip.depth * size
        ):  # all found: nothing is written to shared blocks
            tables.first_write[row] = tip.depth * size
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

    def _hold(self, hit: Hit) -> list[tuple[int, CacheNode]]:
        """Keeps what is needed from being given up while blocks are allocated."""
        nodes = [*hit.path, *((hit.part[0],) if hit.part else ())]
        held = []
        for group, pool in enumerate(self.cache.pools):
            for node in nodes[hit.first[group] :]:
                if node.host_slots[group] != NO_SLOT and self.cache.host is not None:
                    self.cache.host.hold(group, node.host_slots[group])
                    held.append((group, node))
            if hit.part is not None and (block := hit.part[0].blocks[group]):
                pool.share([block])
        return held

    def _let_go(self, held: list[tuple[int, CacheNode]]) -> None:
        """Tails first, so that they are the first to leave the host."""
        for group, node in reversed(held):
            assert self.cache.host is not None
            self.cache.host.let_go(group, node.host_slots[group], node)

    def _take_path(
        self, group: int, pool: BlockPool, row: int, request: Request, hit: Hit
    ) -> None:
        first = hit.first[group]
        nodes = hit.path[first:]
        absent = [node for node in nodes if node.blocks[group] == NULL_BLOCK]
        blocks = pool.allocate(len(absent)) if absent else []
        for node, block in zip(absent, blocks, strict=True):
            self._swap_in(group, node.host_slots[group], block, request)
            self.cache.attach(node, group, block)
        table = [NULL_BLOCK] * first + [node.blocks[group] for node in nodes]
        self._tables.append(group, row, table)
        self._tables.num_behind[group][row] = first

    def _load(
        self, row: int, request: Request, parent: CacheNode, found: DiskBlock
    ) -> CacheNode:
        node = self.cache.insert(parent, found.key, self.cache.block_size)
        node.digest = found.digest
        for group, pool in enumerate(self.cache.pools):
            if node.blocks[group] != NULL_BLOCK:
                pool.share([node.blocks[group]])
                self._tell(EventKind.SHARE, group, [node.blocks[group]], request)
            else:
                (block,) = pool.allocate(1)
                self._tell(EventKind.ALLOCATE, group, [block], request)
                payload = found.payloads[group]
                self._journal.add(Load(group=group, payload=payload, block=block))
                self._tell(EventKind.LOAD, group, [block], request)
                self.cache.attach(node, group, block)
            self._tables.append(group, row, [node.blocks[group]])
        return node

    def _copy_part(self, row: int, request: Request, node: CacheNode) -> None:
        """A block of the row's own that begins like the node's."""
        for group, pool in enumerate(self.cache.pools):
            (block,) = pool.allocate(1)
            self._tell(EventKind.ALLOCATE, group, [block], request)
            self._tables.append(group, row, [block])
            source = node.blocks[group]
            if source != NULL_BLOCK:
                self._journal.copy(group, source, block, request.request_id)
                pool.free([source])  # `_hold` shared it
            else:
                self._swap_in(group, node.host_slots[group], block, request, new=False)

    def _swap_in(
        self, group: int, slot: int, block: int, request: Request, *, new: bool = True
    ) -> None:
        if new:
            self._tell(EventKind.ALLOCATE, group, [block], request)
        self._journal.add(SwapIn(group=group, host_slot=slot, block=block))
        self._journal.emit(
            EventKind.SWAP_IN,
            group=group,
            blocks=(block,),
            slots=(slot,),
            request_id=request.request_id,
        )

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
                self._tell(EventKind.SHARE, group, [known], request)
                self._tables.block_tables[group][row, index] = known  # before the free
                pool.free([own])
                kind = EventKind.RELEASE if pool.refcounts[own] else EventKind.FREE
                self._tell(kind, group, [own], request)
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

    def _tell(
        self, kind: EventKind, group: int, blocks: Sequence[int], request: Request
    ) -> None:
        if blocks:
            self._journal.emit(
                kind, group=group, blocks=tuple(blocks), request_id=request.request_id
            )

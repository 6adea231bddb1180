"""A hit becomes a table: found blocks are shared, fetched from the tiers, or copied."""

from paxkv.allocators.prefix_hit import DiskBlock, Hit
from paxkv.block_pool import NULL_BLOCK, BlockPool
from paxkv.events import EventKind
from paxkv.journal import Journal
from paxkv.moves import Load, SwapIn
from paxkv.prefix_cache import NO_SLOT, CacheNode, PrefixCache
from paxkv.sequence_tables import SequenceTables
from paxkv.types import Request


class HitTaking:
    """Gives empty rows what `find_hit` has found."""

    def __init__(self, cache: PrefixCache, tables: SequenceTables, journal: Journal):
        self._cache = cache
        self._tables = tables
        self._journal = journal

    def take(self, row: int, request: Request, hit: Hit) -> CacheNode:
        """Writes the row's table; the deepest node of which the row is now an owner.

        There must be room.
        """
        held = self._hold(hit)
        for group, pool in enumerate(self._cache.pools):
            pool.share(blocks := hit.device_blocks(group))
            self._journal.tell(EventKind.SHARE, group, blocks, request.request_id)
        self._cache.use([*hit.path, *((hit.part[0],) if hit.part else ())])
        for group, pool in enumerate(self._cache.pools):
            self._take_path(group, pool, row, request, hit)
        tip = hit.path[-1] if hit.path else hit.root
        for block in hit.disk:
            tip = self._load(row, request, tip, block)
        if hit.part is not None:
            self._copy_part(row, request, hit.part[0])
        self._let_go(held)
        return tip

    def _hold(self, hit: Hit) -> list[tuple[int, CacheNode]]:
        """Keeps what is needed from being given up while blocks are allocated."""
        nodes = [*hit.path, *((hit.part[0],) if hit.part else ())]
        held = []
        for group, pool in enumerate(self._cache.pools):
            for node in nodes[hit.first[group] :]:
                if node.host_slots[group] != NO_SLOT and self._cache.host is not None:
                    self._cache.host.hold(group, node.host_slots[group])
                    held.append((group, node))
            if hit.part is not None and (block := hit.part[0].blocks[group]):
                pool.share([block])
        return held

    def _let_go(self, held: list[tuple[int, CacheNode]]) -> None:
        """Tails first, so that they are the first to leave the host."""
        for group, node in reversed(held):
            assert self._cache.host is not None
            self._cache.host.let_go(group, node.host_slots[group], node)

    def _take_path(
        self, group: int, pool: BlockPool, row: int, request: Request, hit: Hit
    ) -> None:
        first = hit.first[group]
        nodes = hit.path[first:]
        absent = [node for node in nodes if node.blocks[group] == NULL_BLOCK]
        blocks = pool.allocate(len(absent)) if absent else []
        for node, block in zip(absent, blocks, strict=True):
            self._swap_in(group, node.host_slots[group], block, request)
            self._cache.attach(node, group, block)
        table = [NULL_BLOCK] * first + [node.blocks[group] for node in nodes]
        self._tables.append(group, row, table)
        self._tables.num_behind[group][row] = first

    def _load(
        self, row: int, request: Request, parent: CacheNode, found: DiskBlock
    ) -> CacheNode:
        node = self._cache.insert(parent, found.key, self._cache.block_size)
        node.digest = found.digest
        for group, pool in enumerate(self._cache.pools):
            if node.blocks[group] != NULL_BLOCK:
                pool.share([node.blocks[group]])
                self._journal.tell(
                    EventKind.SHARE, group, [node.blocks[group]], request.request_id
                )
            else:
                (block,) = pool.allocate(1)
                # evicting may have pruned a node that had no block yet
                node = self._cache.insert(parent, found.key, self._cache.block_size)
                node.digest = found.digest
                self._journal.tell(EventKind.ALLOCATE, group, [block], request.request_id)
                payload = found.payloads[group]
                self._journal.add(Load(group=group, payload=payload, block=block))
                self._journal.tell(EventKind.LOAD, group, [block], request.request_id)
                self._cache.attach(node, group, block)
            self._tables.append(group, row, [node.blocks[group]])
        return node

    def _copy_part(self, row: int, request: Request, node: CacheNode) -> None:
        """A block of the row's own that begins like the node's."""
        for group, pool in enumerate(self._cache.pools):
            (block,) = pool.allocate(1)
            self._journal.tell(EventKind.ALLOCATE, group, [block], request.request_id)
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
            self._journal.tell(EventKind.ALLOCATE, group, [block], request.request_id)
        self._journal.add(SwapIn(group=group, host_slot=slot, block=block))
        self._journal.emit(
            EventKind.SWAP_IN,
            group=group,
            blocks=(block,),
            slots=(slot,),
            request_id=request.request_id,
        )

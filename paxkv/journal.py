"""What planning has decided about blocks since the last plan: moves, and events."""

from collections.abc import Sequence
from typing import Any

from paxkv.block_pool import BlockPool
from paxkv.events import Event, EventKind, Listener
from paxkv.moves import CopyBlock, Move, Poison


class Journal:
    """Shared by all that allocate; `take_moves` empties it into a plan."""

    def __init__(self, listener: Listener | None = None, *, poisons: bool = False):
        """`poisons`: fault mode: blocks are filled with NaN when they are freed and when
        they are handed out."""
        self.listener = listener
        self.poisons = poisons
        self.step = 0
        self.now_s = 0.0
        self.num_copied_blocks = 0
        self._moves: list[Move] = []

    def add(self, move: Move) -> None:
        """Moves happen in the order in which they are added."""
        self._moves.append(move)

    def copy(self, group: int, src: int, dst: int, request_id: int | None = None) -> None:
        """Adds the copy of a block, and counts it."""
        self._moves.append(CopyBlock(group=group, src=src, dst=dst))
        self.num_copied_blocks += 1
        self.emit(EventKind.COPY, group=group, blocks=(src, dst), request_id=request_id)

    def poison(self, group: int, blocks: list[int]) -> None:
        """What is in these blocks must never be read; nothing but in the fault mode."""
        if blocks and self.poisons:
            self._moves.append(Poison(group=group, blocks=tuple(blocks)))

    @property
    def has_moves(self) -> bool:
        return bool(self._moves)

    def take_moves(self) -> tuple[Move, ...]:
        moves, self._moves = tuple(self._moves), []
        return moves

    def tell(
        self, kind: EventKind, group: int, blocks: Sequence[int], request_id: int
    ) -> None:
        """What has become of blocks, if there are any."""
        if blocks and self.listener is not None:
            self.emit(kind, group=group, blocks=tuple(blocks), request_id=request_id)

    def gave_up(
        self, group: int, pool: BlockPool, blocks: Sequence[int], request_id: int
    ) -> None:
        """A request has given up its share in blocks, each named once: others own them
        still, or they are free, or stay cached."""
        if self.poisons:
            self.poison(
                group,
                [b for b in blocks if not pool.refcounts[b] and pool.node_of[b] is None],
            )
        if self.listener is None:
            return
        kinds: dict[EventKind, list[int]] = {}
        for block in blocks:
            if pool.refcounts[block]:
                kind = EventKind.RELEASE
            else:
                kind = EventKind.FREE if pool.node_of[block] is None else EventKind.RETAIN
            kinds.setdefault(kind, []).append(block)
        for kind, some in kinds.items():
            self.tell(kind, group, some, request_id)

    def emit(self, kind: EventKind, **fields: Any) -> None:
        """Tells the listener, if there is one."""
        if self.listener is not None:
            self.listener(Event(kind=kind, step=self.step, now_s=self.now_s, **fields))

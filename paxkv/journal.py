"""What planning has decided about blocks since the last plan: moves, and events."""

from typing import Any

from paxkv.events import Event, EventKind, Listener
from paxkv.moves import CopyBlock, Move, Poison


class Journal:
    """Shared by all that allocate; `take_moves` empties it into a plan."""

    def __init__(self, listener: Listener | None = None):
        self.listener = listener
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
        """Fault mode: what is in these blocks must never be read."""
        if blocks:
            self._moves.append(Poison(group=group, blocks=tuple(blocks)))

    def take_moves(self) -> tuple[Move, ...]:
        moves, self._moves = tuple(self._moves), []
        return moves

    def emit(self, kind: EventKind, **fields: Any) -> None:
        """Tells the listener, if there is one."""
        if self.listener is not None:
            self.listener(Event(kind=kind, step=self.step, now_s=self.now_s, **fields))

"""Slots of the host store: for swapped sequences, and for cached blocks that left the
device. Mechanism on the host; the bytes move by the plan's moves.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from paxkv.events import EventKind
from paxkv.journal import Journal
from paxkv.moves import Spill, SwapOut

if TYPE_CHECKING:
    from paxkv.prefix_cache import CacheNode

# When a cached block is copied to the host: on eviction, as soon as it is full, or at its
# first hit (SGLang's HiCache).
WRITE_POLICIES = ("write_back", "write_through", "write_through_selective")


class HostTier:
    """Per cache group `num_slots` slots, each free, of a swapped sequence, or of a node.

    A node's slot counts only once the step that fills it has run (two phases), so that a
    block written by half can never be hit. Nodes' slots are given up, least recently used
    first, where others need them; swapped sequences keep theirs.
    """

    def __init__(
        self,
        num_slots: int,
        num_groups: int,
        journal: Journal,
        *,
        write_policy: str = "write_back",
        spills: bool = False,
        is_corrupt: Callable[[int, int], bool] = lambda group, host_slot: False,
    ):
        """
        Args:
          spills: nodes that lose their slot go on to the disk store.
          is_corrupt: whether the bytes in a (group, slot) are not those that were put
            there; such a slot holds nothing.
        """
        self.is_corrupt = is_corrupt
        self.num_slots = num_slots
        self.write_policy = write_policy
        self.spills = spills
        self.forget: Callable[[CacheNode, int], None] | None = None  # by the prefix cache
        self._journal = journal
        self._free = [list(range(num_slots - 1, -1, -1)) for _ in range(num_groups)]
        self._nodes: list[OrderedDict[int, CacheNode]] = [
            OrderedDict()
            for _ in range(num_groups)  # slot -> node, the next to go first
        ]
        self._pending: set[tuple[int, int]] = set()  # (group, slot), not yet filled

    def num_free(self, group: int) -> int:
        return len(self._free[group])

    def num_cached(self, group: int) -> int:
        """Slots of nodes."""
        return len(self._nodes[group])

    def can_take(self, group: int, count: int) -> bool:
        return count <= len(self._free[group]) + len(self._nodes[group])

    def take(self, group: int, count: int) -> list[int]:
        """Slots for a swapped sequence; `can_take` must hold."""
        assert self.can_take(group, count), "the caller must ask first"
        while len(self._free[group]) < count:
            self._give_up_oldest(group)
        return [self._free[group].pop() for _ in range(count)]

    def store(self, group: int, block: int, node: "CacheNode") -> int | None:
        """Copies a node's block to its own slot; None: all are of swapped sequences."""
        if not self.can_take(group, 1):
            return None
        (slot,) = self.take(group, 1)
        self._nodes[group][slot] = node
        self._pending.add((group, slot))
        self._journal.add(SwapOut(group=group, block=block, host_slot=slot))
        self._journal.emit(EventKind.SWAP_OUT, group=group, blocks=(block,), slots=(slot,))
        return slot

    def is_stored(self, group: int, slot: int) -> bool:
        """The step that fills the slot has run."""
        return (group, slot) not in self._pending

    def committed(self) -> None:
        """All moves so far have been carried out."""
        self._pending.clear()

    def hold(self, group: int, slot: int) -> None:
        """A node's slot is about to be read: it is not given up until `let_go`."""
        self._nodes[group].pop(slot)

    def let_go(self, group: int, slot: int, node: "CacheNode") -> None:
        """It was hit, so it is the last to go."""
        self._nodes[group][slot] = node

    def release(self, group: int, slot: int) -> None:
        """Gives a slot back, whosever it was."""
        self._nodes[group].pop(slot, None)
        self._pending.discard((group, slot))
        self._free[group].append(slot)

    def _give_up_oldest(self, group: int) -> None:
        slot, node = self._nodes[group].popitem(last=False)
        if self.spills:
            self._journal.add(Spill(group=group, host_slot=slot, digest=node.digest))
            self._journal.emit(EventKind.SPILL, group=group, slots=(slot,))
        self._pending.discard((group, slot))
        self._free[group].append(slot)
        assert self.forget is not None
        self.forget(node, group)

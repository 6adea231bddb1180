"""Which moves of a plan can take effect at once. No jax here."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from paxkv.moves import CopyBlock, Load, Move, Poison, Spill, SwapIn, SwapOut

Place = tuple[str, int]  # ("block", its number) or ("slot", its number)


@dataclass(slots=True, kw_only=True)
class MoveBatch:
    """Moves of one kind and group, in their order, none of which another one feels."""

    group: int
    moves: list[Move] = field(default_factory=list)
    reads: set[Place] = field(default_factory=set)
    writes: set[Place] = field(default_factory=set)

    def conflicts(self, reads: set[Place], writes: set[Place]) -> bool:
        """Whether a move with these places must wait until this batch has run."""
        return not (
            self.writes.isdisjoint(reads)
            and self.writes.isdisjoint(writes)
            and self.reads.isdisjoint(writes)
        )

    def add(self, move: Move, reads: set[Place], writes: set[Place]) -> None:
        self.moves.append(move)
        self.reads |= reads
        self.writes |= writes


def places(move: Move) -> tuple[set[Place], set[Place]]:
    """What a move reads and what it writes, of its group's blocks and host slots."""
    match move:
        case CopyBlock(src=src, dst=dst):
            return {("block", src)}, {("block", dst)}
        case SwapOut(block=block, host_slot=host_slot):
            return {("block", block)}, {("slot", host_slot)}
        case SwapIn(block=block, host_slot=host_slot):
            return {("slot", host_slot)}, {("block", block)}
        case Spill(host_slot=host_slot):
            return {("slot", host_slot)}, set()
        case Load(block=block):
            return set(), {("block", block)}
        case Poison(blocks=blocks):
            return set(), {("block", block) for block in blocks}


def batches(moves: Sequence[Move], max_moves: int) -> list[MoveBatch]:
    """Moves in as few batches as their conflicts allow; these run one after the other.

    A move joins the last batch of its kind and group that it can reach without passing
    a batch that conflicts with it. Groups share nothing, so each has its own batches. A
    copy of a block to itself is left out.

    Args:
      max_moves: the most in one batch.
    """
    by_group: dict[int, list[MoveBatch]] = {}
    for move in moves:
        reads, writes = places(move)
        if reads == writes:
            continue
        earlier = by_group.setdefault(move.group, [])
        home = None
        for batch in reversed(earlier):
            if batch.conflicts(reads, writes):
                break
            if type(batch.moves[0]) is type(move) and len(batch.moves) < max_moves:
                home = batch
                break
        if home is None:
            home = MoveBatch(group=move.group)
            earlier.append(home)
        home.add(move, reads, writes)
    return [batch for group in sorted(by_group) for batch in by_group[group]]

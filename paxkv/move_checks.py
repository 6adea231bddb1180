"""What must hold before a plan's moves are executed. No jax here."""

from collections.abc import Sequence
from dataclasses import dataclass

from paxkv.block_pool import NULL_BLOCK
from paxkv.move_batches import places
from paxkv.moves import Load, Move, Spill, SwapIn, SwapOut
from paxkv.tiers.disk_store import DiskStore
from paxkv.tiers.host_store import HostStore


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSize:
    """Of a cache group's pool."""

    num_blocks: int  # the null block included
    bytes_per_block: int  # of all layers, scales included


def check_moves(
    moves: Sequence[Move],
    groups: Sequence[GroupSize],
    host_store: HostStore | None,
    disk_store: DiskStore | None,
) -> None:
    """Raises a ValueError that names the first move which cannot be done, and why not."""
    for move in moves:
        if not 0 <= move.group < len(groups):
            raise ValueError(f"{move} needs a group in [0, {len(groups)}).")
        size = groups[move.group]
        reads, writes = places(move)
        for kind, number in reads | writes:
            if kind == "block" and not NULL_BLOCK < number < size.num_blocks:
                raise ValueError(
                    f"{kind} {number} must be in [1, {size.num_blocks}): {_brief(move)}."
                )
            if kind == "slot":
                _check_slot(move, number, size, host_store)
        if isinstance(move, Load) and len(move.payload) != size.bytes_per_block:
            raise ValueError(
                f"a payload of {len(move.payload)} bytes must have {size.bytes_per_block}, "
                f"as a block has: {_brief(move)}. Load what was spilled for this cache."
            )
        if isinstance(move, Spill) and disk_store is None:
            raise ValueError(f"there is no disk store: {_brief(move)}. Pass one.")


def _check_slot(
    move: Move, host_slot: int, size: GroupSize, host_store: HostStore | None
) -> None:
    if host_store is None:
        raise ValueError(f"there is no host store: {_brief(move)}. Pass one.")
    if not 0 <= host_slot < host_store.num_slots:
        raise ValueError(
            f"slot {host_slot} must be in [0, {host_store.num_slots}): {_brief(move)}."
        )
    sizes = host_store.bytes_per_block
    slot_bytes = sizes[move.group] if move.group < len(sizes) else 0
    if slot_bytes != size.bytes_per_block:
        raise ValueError(
            f"slots of {slot_bytes} bytes must have {size.bytes_per_block}, as blocks of "
            f"group={move.group} have: {_brief(move)}. Make the store for this cache."
        )


def slots_read_first(moves: Sequence[Move]) -> list[tuple[int, int]]:
    """(group, host slot) of each `SwapIn` that needs what was there before these moves."""
    written: set[tuple[int, int]] = set()
    found = []
    for move in moves:
        if isinstance(move, SwapOut):
            written.add((move.group, move.host_slot))
        elif isinstance(move, SwapIn) and (move.group, move.host_slot) not in written:
            found.append((move.group, move.host_slot))
    return found


def _brief(move: Move) -> str:
    """Without a payload's bytes."""
    if isinstance(move, Load):
        return f"Load(group={move.group}, block={move.block})"
    return str(move)

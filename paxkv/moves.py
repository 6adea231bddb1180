"""Copies and transfers of blocks, as data in a plan. No jax here.

A plan's moves take effect one after the other, all before its step: a block that one move
vacates may be filled by the next. An executor may join neighbours where that changes
nothing.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyBlock:
    """Copy-on-write, and copies of contiguous regions that fork or move: in the pool."""

    group: int
    src: int
    dst: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapOut:
    """A block's bytes go to a slot of the host store; the block stays as it is."""

    group: int
    block: int
    host_slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapIn:
    """The bytes of a slot of the host store go to a block; the slot stays as it is."""

    group: int
    host_slot: int
    block: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spill:
    """The bytes of a host slot go to the disk store, under the digest of their key."""

    group: int
    host_slot: int
    digest: bytes  # 32: of all that the block's K/V depends on


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Bytes that the planner has read from disk, and verified, go to a block."""

    group: int
    payload: bytes
    block: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Poison:
    """Fault mode: fills blocks with NaN (integers: the largest number)."""

    group: int
    blocks: tuple[int, ...]


Move = CopyBlock | SwapOut | SwapIn | Spill | Load | Poison
